"""``autoplan show``: the report of a plan file, and its step as a trace."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TextIO

from autoplan.cli.outcome import Outcome
from autoplan.errors import UsageError
from autoplan.ir.plan import Plan

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Report of the plan, without solver or torch."""
    from autoplan.plan_file import plan_path, read_plan
    from autoplan.report.summary import plan_summary

    plan = read_plan(args.plan)
    if args.trace is not None:
        _write_trace(plan, args.trace)

    def render(stream: TextIO) -> None:
        from autoplan.report.terminal import print_report

        print_report(plan, stream, where=str(plan_path(args.plan).parent))

    return Outcome(document=plan_summary(plan), render=render)


def _write_trace(plan: Plan, path: Path) -> None:
    """Write the step for chrome://tracing and Perfetto; readers never see half of it."""
    from autoplan.simulate import chrome_trace, timeline_of_plan

    timeline = timeline_of_plan(plan)
    if timeline is None:
        raise UsageError(
            "--trace: this plan's step was not simulated",
            hint="its notes say if it has too many events; an older plan: solve again",
        )
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(chrome_trace(timeline), file, separators=(",", ":"), allow_nan=False)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from None
        raise


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--trace {path}: can't be written: {error.strerror}",
        hint="name a file in a folder that exists and is writable",
    )
