"""From a plan and the log of its run to the residuals of a profile or calibration file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from autoplan.ir.identity import plan_digest
from autoplan.ir.plan import CalibrationRecord, CorrectionRecord, Plan
from autoplan.profiles.correction import fit_correction, why_not_corrected
from autoplan.profiles.measured import MeasuredProfile, load_profile
from autoplan.profiles.residuals import (
    CalibrationFile,
    Residual,
    calibration_of,
    plan_axes,
    step_parts,
)
from autoplan.profiles.schema import read_record, write_record
from autoplan.profiles.steplog import SteadyState, read_steady_state

__all__ = ["Calibrated", "add_run", "load_residual_file", "load_residuals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a run changed: ``before`` and ``after`` are of this plan, None where there was none.

    The corrections are those of the next search; ``uncorrected`` says why its times have none.
    """

    run: SteadyState
    residual: Residual
    before: CalibrationRecord | None
    after: CalibrationRecord
    correction_before: CorrectionRecord | None
    correction_after: CorrectionRecord | None
    uncorrected: str
    known: bool
    created: bool


def load_residual_file(path: Path) -> MeasuredProfile | CalibrationFile:
    """Measured profile or calibration file, told apart by ``kind``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return load_profile(path)  # says what is wrong with the file
    if isinstance(data, dict) and "kind" in data:
        return read_record(path, CalibrationFile, "calibration file")
    return load_profile(path)


def load_residuals(path: Path) -> tuple[Residual, ...]:
    """Residuals of a measured profile or calibration file."""
    return load_residual_file(path).residuals


def add_run(plan: Plan, log: Path, target: Path) -> Calibrated:
    """Add the run of ``log`` to the file ``target``, which is made when there is none.

    A log that was added before replaces itself, so that repeating the command changes nothing.
    """
    run = read_steady_state(log, plan)
    created = not target.exists()
    file = CalibrationFile() if created else load_residual_file(target)
    on_cpu = plan.cluster.accelerator.lower().startswith("cpu")
    prediction = plan.prediction
    residual = Residual.model_validate(
        {
            "plan": plan_digest(plan),
            "model": plan.model.digest,
            "hardware": plan.cluster.profile_digest,
            "axes": plan_axes(plan),
            "dtype": plan.workload.dtype,
            "log": run.digest,
            "steps": run.steps,
            "spread": run.spread,
            "step_time": f"{run.step_time!r} s",
            "predicted_step_time": f"{prediction.step_time!r} s",
            "peak_memory": None if on_cpu else f"{run.peak_memory} B",
            "predicted_peak_memory": f"{prediction.peak_memory} B",
            "parts": step_parts(plan).model_dump(mode="json"),
        }
    )
    others = tuple(known for known in file.residuals if known.log != residual.log)
    updated = file.model_copy(update={"residuals": (*others, residual)})
    key = {
        "model": plan.model.digest,
        "hardware": plan.cluster.profile_digest,
        "dtype": plan.workload.dtype,
    }
    after = calibration_of(plan, updated.residuals)
    assert after is not None
    write_record(updated, target)
    return Calibrated(
        run=run,
        residual=residual,
        before=calibration_of(plan, file.residuals),
        after=after,
        correction_before=fit_correction(file.residuals, **key),
        correction_after=fit_correction(updated.residuals, **key),
        uncorrected=why_not_corrected(updated.residuals, **key),
        known=len(others) < len(file.residuals),
        created=created,
    )
