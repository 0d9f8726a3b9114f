"""``autoplan show``: the report of a plan file."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Report of the plan, without solver or torch."""
    from autoplan.plan_file import plan_path, read_plan
    from autoplan.report.summary import plan_summary

    plan = read_plan(args.plan)

    def render(stream: TextIO) -> None:
        from autoplan.report.terminal import print_report

        print_report(plan, stream, where=str(plan_path(args.plan).parent))

    return Outcome(document=plan_summary(plan), render=render)
