"""A run's step log (JSONL of ``train.py --log-file``): reading, refusing, steady state."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoplan.errors import InputError
from autoplan.ir.identity import plan_digest
from autoplan.ir.plan import Plan
from autoplan.profiles.schema import first_error
from autoplan.units import format_time

__all__ = ["MAX_DRIFT", "MIN_STEADY_STEPS", "SteadyState", "StepRecord", "read_steady_state"]

MIN_STEADY_STEPS = 4
MAX_DRIFT = 0.25
"""Change of the median step time from the first to the second half of a steady run."""

_WARM_UP = 0.1
_HINT = "write one with: train.py --steps 20 --log-file run.jsonl"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StepRecord(BaseModel):
    """What is read of one line; seconds and bytes. Other fields are the run's own business."""

    model_config = ConfigDict(frozen=True, strict=True)

    step: Annotated[int, Field(ge=1)]
    step_time: Positive
    predicted_step_time: Positive
    peak_memory: Annotated[int, Field(gt=0)]
    predicted_peak_memory: Annotated[int, Field(gt=0)]
    tokens_per_second: Positive | None = None
    samples_per_second: Positive | None = None
    plan: str | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Median step of a run after its warm-up; ``spread`` is interquartile range over median."""

    digest: str
    steps: int
    dropped: int
    step_time: float
    spread: float
    peak_memory: int


def read_steady_state(path: Path, plan: Plan) -> SteadyState:
    """Steady state of a log of ``plan``; `InputError` when it is not one, or not steady.

    The first step, and a tenth of all, are warm-up. A run whose second half has another
    median than its first by more than `MAX_DRIFT` has no one step time.
    """
    text = _text(path)
    records = _records(path, text)
    for number, record in enumerate(records, start=1):
        _check(path, number, record, plan)
    dropped = max(1, math.ceil(_WARM_UP * len(records)))
    times = [record.step_time for record in records[dropped:]]
    if len(times) < MIN_STEADY_STEPS:
        raise InputError(
            f"{path}: {len(records)} steps, of which {len(times)} after the warm-up; at least "
            f"{MIN_STEADY_STEPS} are needed",
            hint=_HINT,
        )
    middle = len(times) // 2
    early, late = statistics.median(times[:middle]), statistics.median(times[middle:])
    if not 1 / (1 + MAX_DRIFT) <= late / early <= 1 + MAX_DRIFT:
        raise InputError(
            f"{path}: the step time drifts from {format_time(early)} to {format_time(late)} "
            f"({late / early - 1:+.0%}) between the halves of the run, so it has no steady state",
            hint="look for what changed (another job, a throttled device) and run again",
            details={"first_half": early, "second_half": late},
        )
    median = statistics.median(times)
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return SteadyState(
        digest=hashlib.sha256(text.encode()).hexdigest()[:32],
        steps=len(times),
        dropped=dropped,
        step_time=median,
        spread=(upper - lower) / median,
        peak_memory=max(record.peak_memory for record in records),
    )


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't read the step log: {error}", hint=_HINT) from None
    if not text.strip():
        raise InputError(f"{path}: the step log is empty", hint=_HINT)
    return text


def _records(path: Path, text: str) -> list[StepRecord]:
    records = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = StepRecord.model_validate(json.loads(line))
        except ValidationError as error:
            raise InputError(
                f"{path}:{number}: no step of a log: {first_error(error)}", hint=_HINT
            ) from None
        except (ValueError, RecursionError):
            last = ", the last one: was the run cut off?" if number == len(lines) else ""
            raise InputError(f"{path}:{number}: line is not JSON{last}", hint=_HINT) from None
        if record.step != number:
            raise InputError(
                f"{path}:{number}: step {record.step}, expected {number}: steps are missing or "
                "several runs are in one file",
                hint=_HINT,
            )
        records.append(record)
    return records


def _check(path: Path, number: int, record: StepRecord, plan: Plan) -> None:
    """Raise unless the line was written by the plan's program, in its units."""
    place = f"{path}:{number}"
    other = "name the plan.json beside the train.py that wrote the log"
    ranks = plan.cluster.nodes * plan.cluster.ranks_per_node
    if record.ranks is not None and record.ranks != ranks:
        raise InputError(
            f"{place}: a run on {record.ranks} ranks, the plan has {ranks}", hint=other
        )
    if record.plan is not None and record.plan != plan_digest(plan):
        raise InputError(f"{place}: the log is of another plan", hint=other)
    predictions = [(plan.prediction.step_time, plan.prediction.peak_memory)]
    if plan.calibration is not None:
        predictions.append((plan.calibration.step_time, plan.calibration.peak_memory))
    if (record.predicted_step_time, record.predicted_peak_memory) not in predictions:
        raise InputError(
            f"{place}: the run's plan predicted {format_time(record.predicted_step_time)}, this "
            f"one {format_time(predictions[-1][0])}, so the log is of another plan",
            hint=other,
        )
    on_cpu = plan.cluster.accelerator.lower().startswith("cpu")
    if not on_cpu and record.peak_memory > plan.cluster.memory:
        raise InputError(
            f"{place}: peak_memory {record.peak_memory} is over the {plan.cluster.memory} bytes of "
            f"{plan.cluster.accelerator}: it must be in bytes and of this cluster",
            hint=other,
        )
    sequences = plan.workload.global_batch
    seq_len = plan.workload.seq_len
    rate, amount, unit = (
        (record.tokens_per_second, sequences * seq_len, "tokens")
        if seq_len
        else (record.samples_per_second, sequences, "samples")
    )
    if rate is None or not math.isclose(rate * record.step_time, amount, rel_tol=1e-6):
        done = "no rate" if rate is None else f"{rate * record.step_time:.6g} {unit} a step"
        raise InputError(
            f"{place}: step_time and {unit}_per_second give {done}, the plan has {amount}: times "
            "must be in seconds and of this workload",
            hint=other,
        )
