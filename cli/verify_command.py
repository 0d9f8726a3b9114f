"""``autoplan verify``: is a program's training step the unsharded model's."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TextIO

from autoplan.cli.outcome import Outcome, Progress

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Run the program on CPU ranks and compare loss and gradients; differences raise."""
    from autoplan.plan_file import read_plan

    read_plan(args.directory)  # a broken plan is told before torch is loaded

    from autoplan.verify import verify

    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    try:
        report = verify(
            args.directory,
            full=args.full,
            reduced=args.reduced,
            dtype=args.dtype,
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    finally:
        progress.close()

    def render(stream: TextIO) -> None:
        stream.write(f"equal to the unsharded model: {report}\n")

    return Outcome(document={"equal": True, **asdict(report)}, render=render)
