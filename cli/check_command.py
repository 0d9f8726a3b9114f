"""``autoplan check``: tells whether a plan file is sound."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Validate schema, sums, degrees, stages and placements; `InputError` lists what is wrong."""
    from autoplan.plan_checks import require_sound
    from autoplan.plan_file import plan_path, read_plan

    path = plan_path(args.plan)
    plan = read_plan(path)
    require_sound(plan, path)
    document = {"ok": True, "plan": str(path), "schema_version": plan.schema_version}

    def render(stream: TextIO) -> None:
        stream.write(f"{path}: sound\n{plan}\n")

    return Outcome(document=document, render=render)
