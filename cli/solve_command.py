"""``autoplan solve``: model and cluster to plan, report and program."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from autoplan.cli.outcome import Outcome, Progress
from autoplan.cli.planning import Planning
from autoplan.cli.writable import require_own_folder
from autoplan.ir.plan import Plan

__all__ = ["run", "write_program"]


def run(args: argparse.Namespace) -> Outcome:
    """Solve, and write the program when ``-o`` is given."""
    from autoplan.profiles import load_cluster
    from autoplan.report.summary import plan_summary

    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    cluster = load_cluster(args.cluster, profile=args.profile)
    planning = Planning(args, cluster, progress)
    if args.output is not None:
        require_own_folder(args.output, "plan.json")
    try:
        planning.capture()
        started = time.perf_counter()
        plan = planning.plan(
            cluster,
            global_batch=args.global_batch,
            memory_limit=args.memory_limit,
            time_limit=args.time_limit,
        )
        solve_time = time.perf_counter() - started
        if args.output is not None:
            progress("writing the program")
            write_program(plan, args.output)
    finally:
        progress.close()
    capture_time = planning.capture_time
    document = plan_summary(plan, capture_time=capture_time, solve_time=solve_time)
    document["output"] = None if args.output is None else str(args.output)
    where = "" if args.output is None else str(args.output)
    return Outcome(document=document, render=_render(plan, where, capture_time, solve_time))


def _render(
    plan: Plan, where: str, capture_time: float, solve_time: float
) -> Callable[[TextIO], None]:
    def render(stream: TextIO) -> None:
        from autoplan.report.terminal import print_report

        print_report(plan, stream, where=where, capture_time=capture_time, solve_time=solve_time)

    return render


def write_program(plan: Plan, directory: Path) -> list[Path]:
    """Paths of the program's files, written to ``directory`` if nothing of the user's is there."""
    from autoplan.emit import emit_program

    require_own_folder(directory, "plan.json")
    return emit_program(plan, directory)
