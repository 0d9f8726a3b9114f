"""``autoplan calibrate``: correct predictions by what a run took."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from autoplan.cli.outcome import Outcome
from autoplan.errors import UsageError
from autoplan.units import format_bytes

if TYPE_CHECKING:
    from autoplan.profiles.calibration import Calibrated

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Add the run of a log to the residuals of a profile, and show before and after."""
    from autoplan.plan_file import plan_path, read_plan
    from autoplan.profiles.calibration import add_run
    from autoplan.units import format_time

    plan = read_plan(args.plan)
    target: Path = args.profile or _default_target(plan.profile, plan_path(args.plan).parent)
    done = add_run(plan, args.log, target)
    steady, prediction = done.run, plan.prediction
    rows: dict[str, dict[str, float]] = {
        "step_time": _row(
            prediction.step_time,
            prediction.step_time if done.before is None else done.before.step_time,
            steady.step_time,
            done.after.step_time,
        )
    }
    if done.residual.peak_memory is not None:
        rows["peak_memory"] = _row(
            prediction.peak_memory,
            prediction.peak_memory if done.before is None else done.before.peak_memory,
            steady.peak_memory,
            done.after.peak_memory,
        )
    document = {
        "profile": str(target),
        "created": done.created,
        "log_known": done.known,
        "steps": steady.steps,
        "dropped": steady.dropped,
        "spread": steady.spread,
        "runs": done.after.runs,
        "step_time_ratio": done.residual.step_time_ratio,
        "memory_ratio": done.residual.memory_ratio,
        **rows,
        "search": {
            name: None if record is None else record.model_dump(mode="json")
            for name, record in (
                ("before", done.correction_before),
                ("after", done.correction_after),
            )
        },
    }

    def render(stream: TextIO) -> None:
        stream.write(
            f"run         median of {steady.steps} steps, {steady.dropped} of warm-up left out, "
            f"spread {steady.spread:.1%}\n\n"
        )
        table = "{:<12}{:>10} {:>10} {:>10} {:>10} {:>8} {:>8}\n"
        heads = ("predicted", "before", "measured", "after", "error", "error")
        stream.write(table.format("", *heads))
        stream.write(table.format("", "(model)", "", "", "", "before", "after"))
        for name, form in (("step_time", format_time), ("peak_memory", format_bytes)):
            if name not in rows:
                continue
            row = rows[name]
            numbers = (form(row[key]) for key in ("predicted", "before", "measured", "after"))
            errors = (f"{row[key]:+.1%}" for key in ("error_before", "error_after"))
            stream.write(table.format(name.replace("_", " "), *numbers, *errors))
        if done.residual.peak_memory is None:
            stream.write("\nmemory      not calibrated: on a CPU the log has the whole process\n")
        again = " (this log was counted before)" if done.known else ""
        runs = "1 run" if done.after.runs == 1 else f"{done.after.runs} runs"
        stream.write(
            f"\nresidual    x{done.after.step_time_ratio:.3g} of {runs}{again}, in {target}\n"
            f"{_search(done)}"
            f"next        autoplan solve ... --profile {target}\n"
        )

    return Outcome(document=document, render=render)


def _search(done: Calibrated) -> str:
    """What the next search is corrected by, before and after this run."""
    before, after = done.correction_before, done.correction_after
    if after is None:
        return f"search      {done.uncorrected or 'as the model predicts'}\n"
    rows = [
        ("kernels", *(1.0 if c is None else c.kernels for c in (before, after))),
        ("collectives", *(1.0 if c is None else c.collectives for c in (before, after))),
    ]
    lines = [f"next search {name} x{old:.3g} -> x{new:.3g}\n" for name, old, new in rows]
    if after.reserved:
        old = 0 if before is None else before.reserved
        lines.append(
            f"next search {format_bytes(old)} -> {format_bytes(after.reserved)} more reserved\n"
        )
    if done.uncorrected:
        lines.append(f"            {done.uncorrected}\n")
    return "".join(lines)


def _row(predicted: float, before: float, measured: float, after: float) -> dict[str, float]:
    return {
        "predicted": predicted,
        "before": before,
        "measured": measured,
        "after": after,
        "error_before": before / measured - 1,
        "error_after": after / measured - 1,
    }


def _default_target(named: str, folder: Path) -> Path:
    """The profile that the plan names; a new file beside the plan when it names none."""
    if not named:
        return folder / "calibration.json"
    if not Path(named).is_file():
        raise UsageError(
            f"the plan was made with the profile {named}, which is not here",
            hint="name it, or a new file: --profile FILE",
        )
    return Path(named)
