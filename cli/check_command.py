"""``autoplan check``: tells whether a plan file is sound."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome
from autoplan.errors import InputError

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Validate schema, sums, degrees, stages and placements; `InputError` lists what is wrong."""
    from autoplan.plan_checks import check_plan
    from autoplan.plan_file import plan_path, read_plan

    path = plan_path(args.plan)
    plan = read_plan(path)
    findings = check_plan(plan)
    if findings:
        more = f" (and {len(findings) - 1} more, see --json)" if len(findings) > 1 else ""
        raise InputError(
            f"{path}: {findings[0]}{more}",
            hint="the file was changed by hand or damaged: solve again",
            details={"findings": list(findings)},
        )
    document = {"ok": True, "plan": str(path), "schema_version": plan.schema_version}

    def render(stream: TextIO) -> None:
        stream.write(f"{path}: sound\n{plan}\n")

    return Outcome(document=document, render=render)
