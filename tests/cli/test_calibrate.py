"""``autoplan calibrate`` and what the next solve makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoplan.plan_file import read_plan
from tests.cli.conftest import SMALL, Run
from tests.profiles.test_calibration import lines, write


def test_calibrated_runs_are_what_the_next_solve_predicts(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, document = solved
    log = write(tmp_path / "run.jsonl", lines(read_plan(folder)))
    target = tmp_path / "runs.json"
    done = autoplan("calibrate", folder, log, "--profile", target)
    assert done.returncode == 0, done.stderr
    assert "x1.12 of 1 run" in done.stdout and "not calibrated: on a CPU" in done.stdout
    shown = json.loads(autoplan("calibrate", folder, log, "--profile", target, "--json").stdout)
    assert shown["log_known"] and shown["runs"] == 1
    assert shown["step_time"]["error_before"] == shown["step_time"]["error_after"] == 0.0
    work = ("--cluster", "cpu:2", "--global-batch", "4", "--profile", target)
    again = json.loads(autoplan("solve", "gpt2", *SMALL, *work, "--json").stdout)
    assert again["step_time"] == document["step_time"]
    measured = shown["step_time"]["measured"]
    assert abs(again["calibration"]["step_time"] / measured - 1) < 1e-9
    assert again["profile"] == str(target)
    # One run with collectives can't tell them from kernels: the ranking stays, and that is said.
    assert shown["search"] == {"before": None, "after": None}
    assert any("can't be told apart by 1 run(s)" in note for note in again["notes"])


@pytest.mark.slow
def test_what_runs_tell_of_kernels_is_in_the_next_search(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, document = solved
    target = tmp_path / "runs.json"
    log = write(tmp_path / "run.jsonl", lines(read_plan(folder)))
    assert autoplan("calibrate", folder, log, "--profile", target).returncode == 0
    runs = json.loads(target.read_text())
    predicted = runs["residuals"][0]["predicted_step_time"]
    runs["residuals"][0]["parts"] = {"kernels": predicted, "collectives": "0 s"}
    target.write_text(json.dumps(runs))
    shown = json.loads(autoplan("calibrate", folder, log, "--profile", target, "--json").stdout)
    assert abs(shown["search"]["before"]["kernels"] - 1.12) < 1e-6

    runs["residuals"][0]["plan"] = "0" * 32  # as if another plan of the model had been run
    target.write_text(json.dumps(runs))
    work = ("--cluster", "cpu:2", "--global-batch", "4", "--profile", target)
    again = json.loads(autoplan("solve", "gpt2", *SMALL, *work, "--json").stdout)
    assert any("corrected by 1 run of this model: kernels x1.12" in n for n in again["notes"])
    # No plan of slower kernels is as fast as the fastest of the others.
    assert again["step_time"] > document["step_time"]


def test_a_bad_log_ends_with_one_line_and_6(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    log.write_text("")
    done = autoplan("calibrate", solved[0], log)
    assert done.returncode == 6
    assert done.stderr.count("error:") == 1 and "is empty" in done.stderr
    assert not (solved[0] / "calibration.json").exists()
