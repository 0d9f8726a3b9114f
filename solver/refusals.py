"""What is said when there is nothing to search, or no time to find a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.errors import SolverLimitError, UsageError
from autoplan.ir.recompute import Recompute
from autoplan.schedules import SPLIT
from autoplan.solver.candidates import Problem
from autoplan.solver.explore import Outcome
from autoplan.solver.pinned import pinned_space
from autoplan.solver.placement_pins import require_degree
from autoplan.solver.space import Configuration, Pins

__all__ = ["no_plan_yet", "refuse_split", "require_any"]


def require_any(configurations: Sequence[Configuration], problem: Problem, pins: Pins) -> None:
    """Raise UsageError when no configuration of a problem is legal."""
    if configurations:
        return
    graph, ranks, batch = problem.graphs[1], problem.cluster.ranks, problem.global_batch
    blocks = len(graph.instances)
    if pins.placements:
        degrees = {c.mesh.tp for c in pinned_space(problem, replace(pins, placements=()))}
        if degrees:
            require_degree(graph, pins.placements, degrees, problem.cluster)
    stages = [int(degree) for degree in pins.allowed.get("pp", ())]
    if stages and min(stages) > blocks:
        raise UsageError(
            f"--pp {min(stages)}: the model has {blocks} {'block' if blocks == 1 else 'blocks'}, "
            "and each stage needs one",
            hint=f"--pp {blocks} at most" if blocks > 1 else "leave --pp out",
        )
    loops = [int(each) for each in pins.allowed.get("virtual_stages", ())]
    if stages and loops and min(stages) * min(loops) > blocks:
        raise UsageError(
            f"--pp {min(stages)} --virtual-stages {min(loops)}: {min(stages) * min(loops)} stages, "
            f"but the model has {blocks} blocks, and each stage needs one",
            hint=f"--virtual-stages {blocks // min(stages)} at most",
        )
    fixed = ", ".join(pin.option for pin in pins.each())
    if fixed:
        raise UsageError(
            f"no legal configuration of {ranks} ranks with global batch {batch} satisfies {fixed}",
            hint="drop one of these; dp_replicate x dp_shard must divide the global batch, "
            "--zero 1 to 3 need --dp-shard > 1, --schedule needs --pp > 1 and microbatches that "
            "suit it, as many --stages must divide the ranks",
        )
    raise UsageError(
        f"global batch {batch} can't be divided over any mesh of {ranks} ranks",
        hint="choose a global batch that shares divisors with the number of ranks",
    )


def no_plan_yet(outcome: Outcome, time_limit: float) -> SolverLimitError:
    """Error for a deadline before the first plan."""
    return SolverLimitError(
        f"time limit of {time_limit:g} s reached before a plan was found "
        f"({outcome.enumerated} configurations, {len(outcome.overflows)} did not fit)",
        hint="raise --time-limit, or pin degrees, e.g. --tp 8",
    )


def refuse_split(problem: Problem, pins: Pins) -> None:
    """Say what can't go with pinned schedules that split backwards."""
    schedules = pins.allowed.get("schedule", ())
    if not schedules or not all(name in SPLIT for name in schedules):
        return
    compiled, level = problem.cluster.accelerator.compiled, problem.levels[0]
    if compiled or level is not Recompute.NONE:
        what = "--compile" if compiled else f"--recompute {level}"
        raise UsageError(
            f"--schedule {','.join(schedules)} splits backwards, which {what} rules out",
            hint=f"leave {what} out, or --schedule interleaved1f1b",
        )
