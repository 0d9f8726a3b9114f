"""Residuals: what runs took, over what was predicted for them, and their use.

`autoplan calibrate` adds one `Residual` a run to a measured profile, or to a `CalibrationFile`
where the numbers are the catalogue's. A later plan is corrected by the runs of the same plan;
where there are none, by those of its model on the same axes and hardware. Both numbers are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from autoplan.ir.identity import plan_digest
from autoplan.ir.plan import CalibrationRecord, CorrectionRecord, Plan
from autoplan.profiles.schema import ByteCount, MaybeNoTime, Record, Seconds
from autoplan.units import format_bytes

__all__ = [
    "CalibrationFile",
    "Residual",
    "StepParts",
    "calibrate_plan",
    "calibration_of",
    "plan_axes",
    "step_parts",
]

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]


class StepParts(Record):
    """Predicted seconds of a step's kernels, and of its collectives that nothing hides."""

    kernels: Seconds
    collectives: MaybeNoTime


class Residual(Record):
    """One run of a plan: medians of its steady steps beside the cost model's prediction.

    ``spread`` is the interquartile range of the step time over its median. ``peak_memory`` is
    left out where the run can't tell it (a CPU's is that of the whole process). ``parts`` are of
    the cost model alone, without what earlier runs corrected.
    """

    plan: Digest
    model: Digest
    hardware: Digest
    axes: tuple[Literal["pp", "dp_replicate", "dp_shard", "tp"], ...]
    dtype: str
    log: Digest
    steps: Annotated[int, Field(ge=1)]
    spread: Annotated[float, Field(ge=0)]
    step_time: Seconds
    predicted_step_time: Seconds
    peak_memory: Annotated[ByteCount, Field(gt=0)] | None = None
    predicted_peak_memory: Annotated[ByteCount, Field(gt=0)]
    parts: StepParts | None = None

    @property
    def step_time_ratio(self) -> float:
        """Measured over predicted step time."""
        return self.step_time / self.predicted_step_time

    @property
    def memory_ratio(self) -> float | None:
        """Measured over predicted peak memory; None where it was not measured."""
        if self.peak_memory is None:
            return None
        return self.peak_memory / self.predicted_peak_memory


class CalibrationFile(Record):
    """Residuals on their own, where a plan's numbers are not from a measured profile."""

    schema_version: Literal[1] = 1
    kind: Literal["calibration"] = "calibration"
    residuals: tuple[Residual, ...] = ()


def plan_axes(plan: Plan) -> tuple[Literal["pp", "dp_replicate", "dp_shard", "tp"], ...]:
    """Mesh axes of more than one rank."""
    mesh = plan.mesh
    sizes: tuple[tuple[Literal["pp", "dp_replicate", "dp_shard", "tp"], int], ...] = (
        ("pp", mesh.pp),
        ("dp_replicate", mesh.dp_replicate),
        ("dp_shard", mesh.dp_shard),
        ("tp", mesh.tp),
    )
    return tuple(axis for axis, size in sizes if size > 1)


def step_parts(plan: Plan) -> StepParts:
    """Parts of a plan's step as the cost model predicts them, without a correction by runs."""
    time, correction = plan.prediction.time, plan.correction
    kernels = time.compute + time.recompute + time.optimizer + time.bubble
    collectives = time.exposed_tp + time.exposed_dp + time.exposed_pp
    if correction is not None:
        kernels, collectives = kernels / correction.kernels, collectives / correction.collectives
    return StepParts.model_construct(kernels=kernels, collectives=collectives)


def _ratio(run: Residual, correction: CorrectionRecord | None) -> float:
    """Measured step time over what is predicted for the run's plan with a correction."""
    if correction is None or run.parts is None:
        return run.step_time_ratio
    kernels, collectives = run.parts.kernels, run.parts.collectives
    return run.step_time / (correction.kernels * kernels + correction.collectives * collectives)


def calibration_of(plan: Plan, residuals: Sequence[Residual]) -> CalibrationRecord | None:
    """Correction of a plan's prediction by runs, None when no run bears on it.

    Runs of the plan itself say what it takes, whatever is predicted now. Runs of others give
    the median ratio of the runs of the plan's model, dtype, mesh axes and hardware.
    """
    step_time, memory = plan.prediction.step_time, plan.prediction.peak_memory
    basis: Literal["plan", "model"] = "plan"
    digest = plan_digest(plan)
    runs = [run for run in residuals if run.plan == digest]
    if runs:
        ratio = statistics.median(run.step_time for run in runs) / step_time
        peaks = [run.peak_memory / memory for run in runs if run.peak_memory is not None]
    else:
        basis = "model"
        key = (plan.model.digest, plan.cluster.profile_digest, plan_axes(plan), plan.workload.dtype)
        runs = [run for run in residuals if (run.model, run.hardware, run.axes, run.dtype) == key]
        if not runs:
            return None
        ratio = statistics.median(_ratio(run, plan.correction) for run in runs)
        peaks = [run.memory_ratio for run in runs if run.memory_ratio is not None]
    memory_ratio = statistics.median(peaks) if peaks else None
    return CalibrationRecord(
        basis=basis,
        runs=len(runs),
        step_time_ratio=ratio,
        memory_ratio=memory_ratio,
        step_time=step_time * ratio,
        peak_memory=memory if memory_ratio is None else round(memory * memory_ratio),
    )


def calibrate_plan(plan: Plan, residuals: Sequence[Residual]) -> Plan:
    """``plan`` with its correction, and a note that says so, or that no run bears on it.

    The search itself compares what the cost model predicts: a ratio known for one candidate
    and not for the others would favour those that were never run. What runs say of kernels and of
    collectives holds for all candidates, and is in its numbers (`correction`).
    """
    if not residuals:
        return plan
    calibration = calibration_of(plan, residuals)
    if calibration is None:
        note = (
            f"not calibrated: the {len(residuals)} run(s) of the profile are of other models, "
            "axes or hardware"
        )
        return plan.model_copy(update={"notes": (*plan.notes, note)})
    notes = list(plan.notes)
    if calibration.basis == "model":
        notes.append(
            f"calibrated by {calibration.runs} run(s) of other plans of this model on the same axes"
        )
    limit = plan.prediction.memory_limit
    if plan.correction is not None:
        limit += plan.correction.reserved  # what is calibrated includes it
    if calibration.peak_memory > limit:
        notes.append(
            f"calibrated peak memory {format_bytes(calibration.peak_memory)} is over the limit of "
            f"{format_bytes(limit)}: solve again with a lower --memory-limit"
        )
    return plan.model_copy(update={"notes": tuple(notes), "calibration": calibration})
