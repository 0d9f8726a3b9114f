"""The local suite: choice of rows, tables, options, and memory of real ranks."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from autoplan.errors import UsageError
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.grid import grid
from benchmarks.accuracy.local import chosen_rows, run_local
from benchmarks.accuracy.local_table import memory_errors, text

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="counting bytes needs a C++ compiler"
)


def test_grid_covers_three_models_in_every_layout():
    rows = grid()
    assert len(rows) >= 24
    assert len({row.name for row in rows}) == len(rows)
    for name in ("gpt", "moe", "unet"):
        zero = {row.layout.pins.get("zero") for row in rows if row.model.name == name}
        assert zero >= {"0", "1", "2", "3"}


def test_rows_are_chosen_by_part_of_their_name():
    assert {row.model.name for row in chosen_rows(["moe"])} == {"moe"}
    with pytest.raises(UsageError, match="'nothing' is no part"):
        chosen_rows(["nothing"])


@pytest.mark.parametrize(
    "options", [["--steps", "0"], ["--rounds", "-1"], ["--json", "/nowhere/x"], ["--only", "?"]]
)
def test_bad_options_are_one_line(options, capsys):
    assert main(["local", *options]) != 0
    assert capsys.readouterr().err.count("\n") == 1


def test_tables_name_noisy_rows_and_failures():
    row = {
        "model": "m",
        "layout": "zero0",
        "plan": "m on cpu:2",
        "predicted_step_time": 1.1,
        "predicted_memory": [{"peak": 97}, {"peak": 110}],
        "seconds": [[1.0, 1.0], [1.3, 1.3], [1.0, 1.0]],
        "peaks": [100, 100],
    }
    chosen = {**row, "layout": "chosen", "seconds": [[2.0, 2.0]]}
    shown = text({"rows": {"a": row, "b": {"error": "broke"}, "c": chosen}})
    assert "b: broke" in shown
    assert "more than 10%: a\n" in shown
    assert "2.00 x the best measured, a" in shown
    assert "worst +10.0%, most under -3.0%" in shown


@pytest.mark.dist
def test_memory_of_real_ranks(tmp_path):
    rows = chosen_rows(["gpt-zero0-full", "gpt-zero2"])
    output = tmp_path / "found.json"
    document = run_local(rows, steps=1, rounds=1, what=("memory",), profile=None, output=output)
    assert json.loads(output.read_text())["rows"] == document["rows"]
    for row in document["rows"].values():
        for error in memory_errors(row):
            assert -0.03 <= error <= 0.08, row
