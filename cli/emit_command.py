"""``autoplan emit``: write the program of a plan."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Write the program folder; needs neither solver nor torch."""
    from autoplan.cli.solve_command import write_program
    from autoplan.plan_checks import require_sound
    from autoplan.plan_file import plan_path, read_plan

    plan = read_plan(args.plan)
    require_sound(plan, plan_path(args.plan))
    written = write_program(plan, args.output)
    files = [str(path.relative_to(args.output)) for path in written]

    def render(stream: TextIO) -> None:
        own = [name for name in files if not name.startswith("runtime/")]
        stream.write(f"{args.output}: {', '.join(own)}, runtime/\n")
        stream.write(f"next: {args.output}/launch.sh\n")

    return Outcome(document={"output": str(args.output), "files": files}, render=render)
