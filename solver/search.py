"""From a captured model, a workload and a cluster to a plan: the entry of the solver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from autoplan.errors import UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule, update_rule
from autoplan.ir.plan import ModelRecord, Plan, WorkloadRecord
from autoplan.ir.recompute import Recompute
from autoplan.schedules import SPLIT
from autoplan.solver.assemble import assemble
from autoplan.solver.baselines import adopt_better_baseline, price_baselines
from autoplan.solver.candidates import GraphFamily, Problem
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.infeasible import infeasible_error
from autoplan.solver.refusals import no_plan_yet, require_any
from autoplan.solver.space import Configuration, Pins, configurations, parse_pins, permitted_levels
from autoplan.solver.timing import Simulator
from autoplan.units import format_bytes

__all__ = ["CapturedModel", "solve"]

_BASELINE_SHARE = 0.3
"""Part of the time limit kept for pricing baselines."""


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
    time_limit: float = 60.0,
    gap: float = 0.01,
    memory_limit: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Fastest plan found within ``time_limit`` seconds, with its bound and the baselines.

    The search stops once its plan is surely within ``gap`` (relative) of the best.

    Raises UsageError for pins that can't hold, InfeasibleError when nothing fits in
    ``memory_limit`` bytes a rank, SolverLimitError when time ran out before any plan.
    """
    started = time.monotonic()
    if workload.compile:
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, compiled=True))
    limit = _memory_limit(cluster, memory_limit)
    fixed = parse_pins(pins, cluster.ranks, workload.global_batch)
    graphs = GraphFamily(captured.at)
    smallest = graphs[1]
    if not any(parameter.trainable for parameter in smallest.parameters):
        raise UsageError(
            f"{smallest.name} has no trainable parameter among {len(smallest.parameters)}",
            hint="there is nothing to train: set requires_grad on the parameters to learn",
        )
    levels = permitted_levels(smallest, fixed)
    if not levels:
        raise UsageError(
            f"{smallest.name} has recurrent layers, which can't be recomputed selectively",
            hint="--recompute full, or leave it to the planner",
        )
    blocks = len(smallest.instances)
    update = update_rule(workload.optimizer, master=workload.master_weights == "float32")

    def space_of(allowed: Pins) -> list[Configuration]:
        everything = configurations(
            ranks=cluster.ranks,
            global_batch=workload.global_batch,
            max_stages=blocks,
            pins=allowed,
        )
        return [c for c in everything if _runs(c, update, levels, compiled=workload.compile)]

    space = space_of(fixed)
    _refuse_split(fixed, levels, compiled=workload.compile)
    require_any(space, fixed, cluster.ranks, workload.global_batch, blocks)
    problem = Problem(
        graphs=graphs,
        cluster=cluster,
        global_batch=workload.global_batch,
        update=update,
        memory_limit=limit,
        deadline=started + time_limit * (1 - _BASELINE_SHARE),
        levels=levels,
        gap=gap,
    )
    searcher = Searcher(problem, progress)
    if progress is not None:
        progress("first plan: configurations without a model axis")
    outcome = _search(searcher, space)
    baselines = price_baselines(searcher, space_of(Pins({})), started + time_limit, progress)
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
    return assemble(
        captured.record(), workload, cluster, fixed, outcome, baselines, simulator, limit
    )


def _runs(
    configuration: Configuration,
    update: UpdateRule,
    levels: Sequence[Recompute],
    *,
    compiled: bool,
) -> bool:
    """Whether the runtime has the update rule and the schedule.

    FSDP2's shards are float32 masters themselves. Each part of a split backward would recompute
    again, and torch refuses to split those of compiled blocks.
    """
    if configuration.schedule in SPLIT and (compiled or levels[0] is not Recompute.NONE):
        return False
    return update.master or configuration.zero <= 1


def _refuse_split(pins: Pins, levels: Sequence[Recompute], *, compiled: bool) -> None:
    """Say what can't go with pinned schedules that split backwards."""
    schedules = pins.allowed.get("schedule", ())
    if not schedules or not all(name in SPLIT for name in schedules):
        return
    if compiled or levels[0] is not Recompute.NONE:
        what = "--compile" if compiled else f"--recompute {levels[0]}"
        raise UsageError(
            f"--schedule {','.join(schedules)} splits backwards, which {what} rules out",
            hint=f"leave {what} out, or --schedule interleaved1f1b",
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
