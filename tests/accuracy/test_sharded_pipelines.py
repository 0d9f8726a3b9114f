"""Bytes of ZeRO 2 and 3 in pipelines, against those that ranks of such programs held."""

from __future__ import annotations

import os
import shutil
import statistics

import pytest

from autoplan.capture import capture, load_model
from autoplan.profiles import load_cluster
from autoplan.solver.pricing import Priced
from autoplan.solver.space import configurations, parse_pins
from benchmarks.accuracy.grid import Row
from benchmarks.accuracy.local import DTYPE, chosen_rows, run_local
from benchmarks.accuracy.local_table import memory_errors
from tests.search.searchers import searcher_of

# Peaks of both stages of the grid's GPT, by `benchmarks.accuracy local --what memory` on 4 ranks:
# torch 2.13, CPUs. Both data ranks of a stage held the same.
MEASURED = {
    "gpt-pp-1f1b-zero2-m2": (142564260, 107831948),
    "gpt-pp-1f1b-zero2-m4": (112605092, 74660508),
    "gpt-pp-gpipe-zero2-m2": (142564260, 128026296),
    "gpt-pp-gpipe-zero2-m4": (140536996, 111251256),
    "gpt-pp-1f1b-zero3-m2": (130754468, 107831948),
    "gpt-pp-1f1b-zero3-m4": (104264540, 74660508),
    "gpt-pp-gpipe-zero3-m2": (130754468, 128026296),
    "gpt-pp-gpipe-zero3-m4": (137728092, 111251256),
}


def priced(rows: tuple[Row, ...]) -> dict[str, Priced]:
    """Prices of one model in several layouts on 4 ranks, by the names of its rows."""
    (model,) = {row.model.name: row.model for row in rows}.values()
    captured = capture(
        load_model(model.spec, overrides=model.overrides), seq_len=model.seq_len, dtype=DTYPE
    )
    searcher = searcher_of(captured, load_cluster("cpu:4"), global_batch=model.global_batch)
    found = {}
    for row in rows:
        pins = parse_pins(row.layout.pinned(model), 4, model.global_batch)
        (configuration,) = configurations(
            ranks=4, global_batch=model.global_batch, max_stages=4, pins=pins
        )
        result = searcher.result(configuration)
        assert isinstance(result, Priced)
        found[row.name] = result
    return found


def test_predictions_are_near_measured_bytes() -> None:
    errors = {
        (name, stage): outcome.memory.peak / MEASURED[name][stage] - 1
        for name, found in priced(chosen_rows(tuple(MEASURED))).items()
        for stage, outcome in enumerate(found.stages)
    }
    assert len(errors) == 2 * len(MEASURED)
    assert statistics.median(map(abs, errors.values())) <= 0.005
    assert max(map(abs, errors.values())) <= 0.01, errors


@pytest.mark.dist
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="counting bytes needs a C++ compiler"
)
@pytest.mark.parametrize("name", ["1f1b-zero3-m4", "gpipe-zero3-m2", "gpipe-zero2-m4"])
def test_ranks_hold_what_is_predicted(name: str) -> None:
    rows = chosen_rows([f"gpt-pp-{name}"])
    document = run_local(rows, steps=1, rounds=1, what=("memory",), profile=None, output=None)
    (row,) = document["rows"].values()
    for error in memory_errors(row):
        assert -0.03 <= error <= 0.03, row
