"""From a captured model, a workload and a cluster to a plan: the entry of the solver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from autoplan.ir.graph import Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import ModelRecord, Plan, WorkloadRecord
from autoplan.solver.assemble import assemble
from autoplan.solver.baselines import adopt_better_baseline, price_baselines
from autoplan.solver.candidates import GraphFamily
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.infeasible import infeasible_error
from autoplan.solver.pin_costs import PinCost, price_pins
from autoplan.solver.placement_pins import PlacementPin, pinned_graph
from autoplan.solver.prepare import Prepared, prepare
from autoplan.solver.refusals import no_plan_yet
from autoplan.solver.space import Configuration

__all__ = ["CapturedModel", "Planner", "solve"]

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


class Planner:
    """Plans of one captured model, by workload, cluster and memory limit.

    What one search found out serves the next one on the same cluster, whatever its batch and
    memory limit; plans are those that searches of their own give.
    """

    def __init__(
        self, captured: CapturedModel, progress: Callable[[str], None] | None = None
    ) -> None:
        self._captured = captured
        self._progress = progress
        self._graphs: dict[tuple[PlacementPin, ...], GraphFamily] = {}
        self._last: Searcher | None = None

    def plan(
        self,
        workload: WorkloadRecord,
        cluster: Cluster,
        *,
        pins: Mapping[str, str],
        placements: Sequence[str] = (),
        stages: str | None = None,
        time_limit: float = 60.0,
        gap: float = 0.01,
        memory_limit: int | None = None,
        suggest: bool = True,
    ) -> Plan:
        """Fastest plan found within ``time_limit`` seconds, with its bound and the baselines.

        The search stops once its plan is surely within ``gap`` (relative) of the best. ``pins`` fix
        decisions by name, ``placements`` (``PATTERN=PLACEMENT``) those of parameters and ``stages``
        the blocks of each stage.

        Raises UsageError for pins that can't hold, InfeasibleError when nothing fits in
        ``memory_limit`` bytes a rank, SolverLimitError when time ran out before any plan.
        If it is to ``suggest``, which takes searches, each pin is priced against the free choice,
        and what is infeasible names changes that fit.
        """
        started = time.monotonic()
        prepared = prepare(
            self._graphs_of,
            workload,
            cluster,
            pins=pins,
            placements=placements,
            stages=stages,
            gap=gap,
            memory_limit=memory_limit,
        )
        searcher = self._searcher(prepared, started + time_limit * (1 - _BASELINE_SHARE))
        if self._progress is not None:
            self._progress("first plan: configurations without a model axis")
        outcome = _search(searcher, prepared.space)
        each = prepared.pins.each()
        end = started + time_limit
        until = end - (_PINS_SHARE * time_limit if each and suggest else 0.0)
        baselines = price_baselines(searcher, prepared.free, until, self._progress)
        simulator = searcher.answers.simulator
        if outcome.best is not None:
            outcome.best = simulator.fastest([outcome.best, *outcome.priced])
        baselines = [
            replace(b, priced=simulator.timed(b.priced)) if b.priced else b for b in baselines
        ]
        adopt_better_baseline(outcome, baselines, prepared.pins)
        if outcome.best is None:
            if outcome.termination == "time_limit":
                raise no_plan_yet(outcome, time_limit)
            if outcome.termination == "interrupted":
                raise KeyboardInterrupt
            raise infeasible_error(
                searcher, prepared.space, outcome, prepared.pins, suggest=suggest
            )
        costs = [PinCost(pin, None, False) for pin in each]
        if suggest:
            costs = price_pins(
                searcher, prepared.pins, outcome.best, simulator, end, self._progress
            )
        problem = prepared.problem
        return assemble(
            self._model,
            workload,
            problem.cluster,
            costs,
            outcome,
            baselines,
            simulator,
            problem.memory_limit,
        )

    def _graphs_of(self, placements: tuple[PlacementPin, ...]) -> GraphFamily:
        """Graphs of the model; copies of a block that placement pins tell apart are classes."""
        if placements not in self._graphs:
            captured = self._captured
            self._graphs[placements] = GraphFamily(
                lambda size: pinned_graph(captured.at(size), placements)
            )
        return self._graphs[placements]

    @cached_property
    def _model(self) -> ModelRecord:
        return self._captured.record()

    def _searcher(self, prepared: Prepared, deadline: float) -> Searcher:
        problem = replace(prepared.problem, deadline=deadline)
        if self._last is not None and self._last.answers.serves(problem):
            self._last = self._last.beside(problem)
        else:
            self._last = Searcher(problem, self._progress)
        return self._last


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
) -> Plan:
    """One plan of a `Planner`."""
    return Planner(captured).plan(
        workload,
        cluster,
        pins=pins,
        placements=placements,
        stages=stages,
        time_limit=time_limit,
        gap=gap,
        memory_limit=memory_limit,
    )


def _search(searcher: Searcher, space: Sequence[Configuration]) -> Outcome:
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
