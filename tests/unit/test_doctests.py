"""The examples in docstrings, of the modules that need no torch."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDS_TORCH = ("capture", "runtime", "verify", "measure")


def _modules_with_examples() -> list[str]:
    found = []
    for folder in ("autoplan", "solver", "cli", "profiles"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if ">>> " in path.read_text(encoding="utf-8") and not set(parts) & set(NEEDS_TORCH):
                found.append(".".join(parts if parts[0] == "autoplan" else ("autoplan", *parts)))
    return found


@pytest.mark.parametrize("name", _modules_with_examples())
def test_examples_of(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
