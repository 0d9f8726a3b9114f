"""From a captured model, a workload and a cluster to a plan: the entry of the solver."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from autoplan.errors import UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import update_rule
from autoplan.ir.plan import ModelRecord, Plan, WorkloadRecord
from autoplan.solver.assemble import assemble
from autoplan.solver.baselines import adopt_better_baseline, price_baselines
from autoplan.solver.candidates import GraphFamily, Problem
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.infeasible import infeasible_error
from autoplan.solver.pin_costs import price_pins
from autoplan.solver.pinned import model_pins, pinned_problem, pinned_space
from autoplan.solver.placement_pins import pinned_graph
from autoplan.solver.refusals import no_plan_yet, refuse_split, require_any
from autoplan.solver.space import Configuration, Pins, parse_pins, permitted_levels
from autoplan.solver.timing import Simulator
from autoplan.units import format_bytes

__all__ = ["CapturedModel", "solve"]

_BASELINE_SHARE = 0.3
"""Part of the time limit kept for pricing baselines, and pins if there are any."""

_PINS_SHARE = 0.2
"""Part of the time limit kept for pricing pins."""


class CapturedModel(Protocol):
    """What the solver needs of a captured model."""

    def at(self, micro_batch_size: int) -> Graph:
        """Graph at a microbatch size."""
        ...

    def record(self) -> ModelRecord:
        """How to build the model again."""
        ...


def solve(
    captured: CapturedModel,
    workload: WorkloadRecord,
    cluster: Cluster,
    *,
    pins: Mapping[str, str],
    placements: Sequence[str] = (),
    stages: str | None = None,
    time_limit: float = 60.0,
    gap: float = 0.01,
    memory_limit: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Fastest plan found within ``time_limit`` seconds, with its bound and the baselines.

    The search stops once its plan is surely within ``gap`` (relative) of the best. ``pins`` fix
    decisions by name, ``placements`` (``PATTERN=PLACEMENT``) those of parameters and ``stages``
    the blocks of each stage; each is priced against the free choice.

    Raises UsageError for pins that can't hold, InfeasibleError when nothing fits in
    ``memory_limit`` bytes a rank, SolverLimitError when time ran out before any plan.
    """
    started = time.monotonic()
    if workload.compile:
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, compiled=True))
    limit = _memory_limit(cluster, memory_limit)
    fixed = parse_pins(pins, cluster.ranks, workload.global_batch)
    smallest = captured.at(1)
    if not any(parameter.trainable for parameter in smallest.parameters):
        raise UsageError(
            f"{smallest.name} has no trainable parameter among {len(smallest.parameters)}",
            hint="there is nothing to train: set requires_grad on the parameters to learn",
        )
    fixed = model_pins(fixed, smallest, placements, stages)
    if not permitted_levels(smallest, fixed):
        raise UsageError(
            f"{smallest.name} has recurrent layers, which can't be recomputed selectively",
            hint="--recompute full, or leave it to the planner",
        )
    update = update_rule(workload.optimizer, master=workload.master_weights == "float32")
    asked = Problem(
        graphs=GraphFamily(lambda size: pinned_graph(captured.at(size), fixed.placements)),
        cluster=cluster,
        global_batch=workload.global_batch,
        update=update,
        memory_limit=limit,
        deadline=math.inf,
        gap=gap,
    )
    problem = pinned_problem(asked, fixed, started + time_limit * (1 - _BASELINE_SHARE))
    space = pinned_space(problem, fixed)
    refuse_split(problem, fixed)
    require_any(space, problem, fixed)
    searcher = Searcher(problem, progress)
    if progress is not None:
        progress("first plan: configurations without a model axis")
    outcome = _search(searcher, space)
    until = started + time_limit * (1 - (_PINS_SHARE if fixed.each() else 0.0))
    baselines = price_baselines(searcher, pinned_space(problem, Pins({})), until, progress)
    simulator = Simulator(cluster, update)
    if outcome.best is not None:
        outcome.best = simulator.fastest([outcome.best, *outcome.priced])
    baselines = [replace(b, priced=simulator.timed(b.priced)) if b.priced else b for b in baselines]
    adopt_better_baseline(outcome, baselines, fixed)
    if outcome.best is None:
        if outcome.termination == "time_limit":
            raise no_plan_yet(outcome, time_limit)
        if outcome.termination == "interrupted":
            raise KeyboardInterrupt
        raise infeasible_error(searcher, space, outcome, fixed)
    costs = price_pins(searcher, fixed, outcome.best, simulator, started + time_limit, progress)
    return assemble(
        captured.record(), workload, cluster, costs, outcome, baselines, simulator, limit
    )


def _search(searcher: Searcher, space: list[Configuration]) -> Outcome:
    """Best of the space; when stopped, no worse than the plan found first."""
    try:
        first = searcher.first_plan(space)
    except KeyboardInterrupt:
        outcome = Outcome(termination="interrupted", lower_bound=0.0, enumerated=len(space))
        first = searcher.fallback
    else:
        outcome = searcher.run(space)
    if first is not None and outcome.termination != "optimal":
        if outcome.best is None or first.step_time < outcome.best.step_time:
            outcome.best = first
        if first not in outcome.priced:
            outcome.priced.append(first)
    return outcome


def _memory_limit(cluster: Cluster, asked: int | None) -> int:
    usable = cluster.accelerator.usable_memory
    if asked is None:
        return usable
    if asked > cluster.accelerator.memory:
        raise UsageError(
            f"--memory-limit {format_bytes(asked)} exceeds the "
            f"{format_bytes(cluster.accelerator.memory)} of {cluster.accelerator.name}",
            hint=f"the default is {format_bytes(usable)} usable",
        )
    return asked
