"""What runs correct of the numbers that the next search prices plans with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoplan.costs.collectives import collective_time
from autoplan.costs.compute import memory_time
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.plan import CorrectionRecord, Plan
from autoplan.profiles import cluster_record, load_cluster
from autoplan.profiles.calibration import add_run, load_residuals
from autoplan.profiles.correction import correct_cluster, fit_correction, why_not_corrected
from autoplan.profiles.residuals import Residual, calibrate_plan, calibration_of, step_parts
from tests.conftest import sample_plan_data
from tests.profiles.test_calibration import lines, write

KEY = {"model": "1" * 16, "hardware": "2" * 16, "dtype": "float32"}


def run(kernels: float, collectives: float, seconds: float, **changes: Any) -> Residual:
    fields = {
        "plan": "3" * 16,
        "axes": (),
        "log": "4" * 16,
        "steps": 9,
        "spread": 0.01,
        "step_time": f"{seconds!r} s",
        "predicted_step_time": f"{kernels + collectives!r} s",
        "predicted_peak_memory": "4 GiB",
        "parts": {"kernels": f"{kernels!r} s", "collectives": f"{collectives!r} s"},
    }
    return Residual.model_validate(fields | KEY | changes)


def made(kernels: float, collectives: float, *, true: tuple[float, float]) -> Residual:
    return run(kernels, collectives, kernels * true[0] + collectives * true[1])


def test_runs_that_differ_in_their_share_of_collectives_give_both_factors() -> None:
    true = 1.25, 0.6
    runs = [made(1.0, 0.02, true=true), made(0.9, 0.4, true=true), made(0.8, 0.7, true=true)]
    found = fit_correction(runs, **KEY)
    assert found is not None and found.runs == 3
    assert (found.kernels, found.collectives) == pytest.approx(true)
    assert not why_not_corrected(runs, **KEY)


def test_runs_with_few_collectives_tell_of_kernels_alone() -> None:
    found = fit_correction([made(1.0, 0.02, true=(1.25, 1.0))], **KEY)
    assert found is not None
    assert (found.kernels, found.collectives) == (pytest.approx(1.25), 1.0)


def test_what_runs_can_not_tell_apart_is_not_applied_and_said() -> None:
    runs = [made(0.7, 0.3, true=(1.5, 1.0)), made(0.68, 0.32, true=(1.5, 1.0))]
    assert fit_correction(runs, **KEY) is None
    assert "can't be told apart by 2 run(s)" in why_not_corrected(runs, **KEY)
    assert "30% to 32%" in why_not_corrected(runs, **KEY)


def test_an_absurd_factor_is_not_applied_and_said() -> None:
    runs = [made(1.0, 0.02, true=(9.0, 1.0))]
    assert fit_correction(runs, **KEY) is None
    assert "off by more than 4 times" in why_not_corrected(runs, **KEY)


@pytest.mark.parametrize("field", KEY)
def test_runs_of_something_else_and_older_ones_without_parts_say_nothing(field: str) -> None:
    other = {field: "float64" if field == "dtype" else "f" * 16}
    for foreign in (run(1.0, 0.0, 1.3, **other), run(1.0, 0.0, 1.3, parts=None)):
        assert fit_correction([foreign], **KEY) is None
        assert not why_not_corrected([foreign], **KEY)


def test_the_largest_excess_of_memory_is_reserved_and_never_given_back() -> None:
    base = {"step_time": "1.0 s"}
    runs = [run(1.0, 0.0, 1.0, peak_memory=size, **base) for size in ("5 GiB", "4.5 GiB", "3 GiB")]
    found = fit_correction(runs, **KEY)
    assert found is not None and found.reserved == 2**30
    less = fit_correction(runs[2:], **KEY)
    assert less is not None and less.reserved == 0


def test_every_time_of_a_corrected_cluster_is_scaled_and_its_digest_stays() -> None:
    cluster = load_cluster("2x8xh100")
    factors = CorrectionRecord(runs=2, kernels=1.25, collectives=0.5, reserved=2**30)
    corrected = correct_cluster(cluster, factors)
    device, other = cluster.accelerator, corrected.accelerator
    assert memory_time(2**20, other) == pytest.approx(1.25 * memory_time(2**20, device))
    assert other.peak("bfloat16") == pytest.approx(device.peak("bfloat16") / 1.25)
    assert other.kernel_latency == pytest.approx(1.25 * device.kernel_latency)
    for group in (Group(8, 1), Group(2, 8)):
        before, after = (
            collective_time(CollectiveKind.ALL_REDUCE, 2**26, group, c)
            for c in (cluster, corrected)
        )
        assert after == pytest.approx(0.5 * before)
    assert other.reserved == device.reserved + 2**30
    record = cluster_record(corrected)
    assert record.digest == cluster_record(cluster).digest
    assert record.profile_digest == cluster_record(cluster).profile_digest
    assert record.usable_memory == other.usable_memory
    compiled = replace(corrected, accelerator=replace(other, compiled=True))
    plain = replace(cluster, accelerator=replace(device, compiled=True))
    assert cluster_record(compiled).digest == cluster_record(plain).digest


@pytest.fixture
def plan() -> Plan:
    data = sample_plan_data()
    data["cluster"]["memory"] = data["prediction"]["memory_limit"] = 80 * 2**30
    return Plan.model_validate(data)


def test_a_run_s_parts_are_the_model_s_whatever_was_corrected(plan: Plan) -> None:
    parts = step_parts(plan)
    factors = CorrectionRecord(runs=1, kernels=2.0, collectives=0.5, reserved=0)
    time = plan.prediction.time
    doubled = {
        name: getattr(time, name) * (0.5 if name.startswith("exposed") else 2.0)
        for name in type(time).model_fields
    }
    prediction = plan.prediction.model_copy(update={"time": time.model_copy(update=doubled)})
    again = plan.model_copy(update={"prediction": prediction, "correction": factors})
    assert step_parts(again) == parts


def test_what_the_search_was_corrected_by_is_not_applied_twice(plan: Plan, tmp_path: Path) -> None:
    """A run at 1.12 times its prediction; the next plan, of the corrected model, is not."""
    target = tmp_path / "calibration.json"
    add_run(plan, write(tmp_path / "log.jsonl", lines(plan)), target)
    (residual,) = load_residuals(target)
    assert residual.parts is not None
    factors = CorrectionRecord(runs=1, kernels=1.12, collectives=1.12, reserved=0)
    other = plan.model_copy(update={"recompute": "full", "correction": factors})
    found = calibration_of(other, [residual])
    assert found is not None and found.basis == "model"
    assert found.step_time_ratio == pytest.approx(1.0)


def test_reserved_memory_is_not_held_against_the_plan_again(plan: Plan, tmp_path: Path) -> None:
    """Peak 56 GiB, 70 GiB in the run, limit 80: with 14 reserved, 66 is left for the model's."""
    target = tmp_path / "calibration.json"
    add_run(plan, write(tmp_path / "log.jsonl", lines(plan)), target)
    excess = 14 * 2**30
    tight = plan.prediction.model_copy(update={"memory_limit": 66 * 2**30})
    factors = CorrectionRecord(runs=1, kernels=1.0, collectives=1.0, reserved=excess)
    plan = plan.model_copy(update={"prediction": tight, "correction": factors})
    assert not any(
        "over the limit" in n for n in calibrate_plan(plan, load_residuals(target)).notes
    )
