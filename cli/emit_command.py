"""``autoplan emit``: write the program of a plan."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Write the program folder; needs neither solver nor torch."""
    from autoplan.cli.solve_command import write_program
    from autoplan.plan_file import read_plan

    plan = read_plan(args.plan)
    written = write_program(plan, args.output)
    files = [str(path.relative_to(args.output)) for path in written]

    def render(stream: TextIO) -> None:
        ranks = plan.cluster.ranks_per_node
        own = [name for name in files if not name.startswith("runtime/")]
        stream.write(f"{args.output}: {', '.join(own)}, runtime/\n")
        stream.write(f"next: torchrun --nproc-per-node {ranks} {args.output}/train.py\n")

    return Outcome(document={"output": str(args.output), "files": files}, render=render)
