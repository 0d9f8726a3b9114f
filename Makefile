# make test   checks and tests      make demo   the main job on this machine
# Both set up .venv by themselves; later runs skip that until pyproject.toml or constraints.txt change.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help install test lint types unit dist demo clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (PYTHON=...)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[hf,dev]'
	@touch $@

install: $(STAMP) ## create .venv and install into it

test: lint types unit dist ## everything: lint, types, tests

lint: $(STAMP) ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy -p autoplan -p benchmarks

unit: $(STAMP) ## fast tests
	$(BIN)/python -m pytest

dist: $(STAMP) ## tests that start several processes or take long
	$(BIN)/python -m pytest -m 'dist or slow'

demo: $(STAMP) ## solve GPT-2 and Llama-3-8B, run a generated program on 2 ranks
	$(BIN)/python examples/demo.py

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
