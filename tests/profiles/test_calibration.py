"""Calibration: steady state of a log, refusals, residuals and the corrected prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoplan.errors import InputError
from autoplan.ir.identity import plan_digest
from autoplan.ir.plan import Plan
from autoplan.profiles.calibration import add_run, load_residuals
from autoplan.profiles.residuals import calibrate_plan, calibration_of
from autoplan.report.terminal import report_lines
from autoplan.runtime.planfile import read_plan
from tests.conftest import sample_plan_data

RATIO = 1.12


@pytest.fixture
def plan() -> Plan:
    data = sample_plan_data()
    data["cluster"]["accelerator"] = "H100-80GB-SXM"
    data["cluster"]["memory"] = data["prediction"]["memory_limit"] = 80 * 2**30
    return Plan.model_validate(data)


def lines(plan: Plan, *, steps: int = 20, ratio: float = RATIO) -> list[dict[str, Any]]:
    """Log of a run that takes ``ratio`` of the prediction after a slow first step."""
    prediction, workload = plan.prediction, plan.workload
    unit = "tokens" if workload.seq_len else "samples"
    records = []
    for step in range(1, steps + 1):
        noise = 5.0 if step == 1 else 1 + 0.01 * (step % 3 - 1)
        seconds = prediction.step_time * ratio * noise
        records.append(
            {
                "plan": plan_digest(plan),
                "ranks": plan.cluster.nodes * plan.cluster.ranks_per_node,
                "step": step,
                "loss": 1.0,
                "step_time": seconds,
                "predicted_step_time": prediction.step_time,
                f"{unit}_per_second": workload.global_batch * (workload.seq_len or 1) / seconds,
                "peak_memory": round(prediction.peak_memory * 1.25),
                "predicted_peak_memory": prediction.peak_memory,
            }
        )
    return records


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_same_plan_is_then_predicted_as_measured(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "calibration.json"
    done = add_run(plan, write(tmp_path / "log.jsonl", lines(plan)), target)
    assert done.created and done.before is None
    assert (done.run.dropped, done.run.steps) == (2, 18)
    assert done.residual.step_time_ratio == pytest.approx(RATIO)
    assert done.run.spread == pytest.approx(0.02, rel=0.5)
    again = calibrate_plan(plan, load_residuals(target))
    assert again.calibration is not None and again.calibration.basis == "plan"
    assert again.calibration.step_time == pytest.approx(done.run.step_time)
    assert again.calibration.peak_memory == done.run.peak_memory
    assert again.prediction == plan.prediction
    text = "\n".join(report_lines(again))
    assert "calibrated x1.12 from 1 run; the model alone says" in text
    assert "memory x1.25 too" in text


def test_a_log_counts_once_and_runs_are_medianed(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "calibration.json"
    for ratio in (1.1, 1.2, 1.6):
        log = write(tmp_path / "log.jsonl", lines(plan, ratio=ratio))
        add_run(plan, log, target)
    repeated = add_run(plan, log, target)
    assert repeated.known and repeated.after.runs == 3
    assert repeated.after.step_time_ratio == pytest.approx(1.2)


def test_other_plans_take_the_ratio_of_their_model_and_axes_only(
    plan: Plan, tmp_path: Path
) -> None:
    target = tmp_path / "calibration.json"
    add_run(plan, write(tmp_path / "log.jsonl", lines(plan)), target)
    residuals = load_residuals(target)
    other = plan.model_copy(update={"recompute": "full"})
    calibration = calibration_of(other, residuals)
    assert calibration is not None and calibration.basis == "model"
    assert "other plans of this model" in calibrate_plan(other, residuals).notes[-1]
    for changed in (
        {"model": plan.model.model_copy(update={"digest": "d" * 32})},
        {"mesh": plan.mesh.model_copy(update={"tp": 1})},
        {"workload": plan.workload.model_copy(update={"dtype": "float64"})},
        {"cluster": plan.cluster.model_copy(update={"profile_digest": "e" * 32})},
    ):
        foreign = plan.model_copy(update=changed)
        if "cluster" in changed:  # the digest of the whole cluster changes with it
            cluster = foreign.cluster.model_copy(update={"digest": "f" * 32})
            foreign = foreign.model_copy(update={"cluster": cluster})
        noted = calibrate_plan(foreign, residuals)
        assert noted.calibration is None and "not calibrated" in noted.notes[-1]


def test_memory_over_the_limit_is_said(plan: Plan, tmp_path: Path) -> None:
    limit = plan.prediction.peak_memory
    tight = plan.prediction.model_copy(update={"memory_limit": limit})
    plan = plan.model_copy(update={"prediction": tight})
    target = tmp_path / "calibration.json"
    add_run(plan, write(tmp_path / "log.jsonl", lines(plan)), target)
    assert "over the limit" in calibrate_plan(plan, load_residuals(target)).notes[-1]


def test_memory_of_a_cpu_run_is_left_alone(tmp_path: Path) -> None:
    data = sample_plan_data()
    data["cluster"]["accelerator"] = "cpu"
    plan = Plan.model_validate(data)
    done = add_run(plan, write(tmp_path / "log.jsonl", lines(plan)), tmp_path / "c.json")
    assert done.residual.peak_memory is None and done.after.memory_ratio is None
    assert done.after.peak_memory == plan.prediction.peak_memory


def drifting(records: list[dict[str, Any]]) -> None:
    for record in records[11:]:
        record["step_time"] *= 1.4
        unit = next(key for key in record if key.endswith("per_second"))
        record[unit] /= 1.4


def scale_time(records: list[dict[str, Any]]) -> None:
    records[4]["step_time"] *= 1000  # milliseconds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.clear(), "is empty"),
        (lambda r: r.__delitem__(slice(3, None)), "3 steps, of which 2 after the warm-up"),
        (lambda r: r.pop(6), r":7: step 8, expected 7"),
        (lambda r: r[2].update(ranks=3), "a run on 3 ranks, the plan has 4"),
        (lambda r: r[2].update(plan="0" * 32), "of another plan"),
        (lambda r: r[2].update(predicted_step_time=77.0), "the run's plan predicted"),
        (lambda r: r[2].update(step_time="12 ms"), "step_time: Input should be a valid number"),
        (lambda r: r[2].update(step_time=-1.0), "step_time: Input should be greater than 0"),
        (lambda r: r[2].pop("peak_memory"), "peak_memory: Field required"),
        (lambda r: r[2].update(peak_memory=2**50), "must be in bytes"),
        (scale_time, "times must be in seconds"),
        (drifting, r"drifts from .* \(\+4.%\)"),
    ],
)
def test_logs_that_are_not_of_a_steady_run_of_the_plan(
    change: Any, message: str, plan: Plan, tmp_path: Path
) -> None:
    records = lines(plan)
    change(records)
    target = tmp_path / "calibration.json"
    with pytest.raises(InputError, match=message) as caught:
        add_run(plan, write(tmp_path / "log.jsonl", records), target)
    assert "\n" not in str(caught.value) and caught.value.hint
    assert not target.exists()


def test_a_cut_off_line_and_other_files_are_refused(plan: Plan, tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", lines(plan))
    target = tmp_path / "calibration.json"
    log.write_text(log.read_text()[:-30])
    with pytest.raises(InputError, match=r":20: line is not JSON, the last one"):
        add_run(plan, log, target)
    log.write_text("[1, 2]\n")
    with pytest.raises(InputError, match=":1: no step of a log"):
        add_run(plan, log, target)
    with pytest.raises(InputError, match="can't read the step log"):
        add_run(plan, tmp_path, target)
    write(log, lines(plan))
    target.write_text('{"kind": "calibration", "schema_version": 1, "residuals": [{}]}')
    before = target.read_text()
    with pytest.raises(InputError, match=r"residuals\.0\.plan"):
        add_run(plan, log, target)
    assert target.read_text() == before


def test_the_program_names_its_plan_as_the_planner_does(
    plan_data: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_data))
    assert read_plan(path).digest == plan_digest(Plan.model_validate(plan_data))
