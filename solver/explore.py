"""The outer search: best-first over configurations, with bounds and a deadline.

Every configuration enters a heap with a lower bound from its FLOP and bytes. When popped it is
given that of its operators' strategies, then the exact intra-operator optimum (tighter still),
both with the recompute that memory forces, then priced. The search ends when the least bound in
the heap is within the asked gap of the best plan.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.errors import InternalError, SolverLimitError
from autoplan.ir.placement import Replicate
from autoplan.ir.recompute import Recompute
from autoplan.schedules import SPLIT
from autoplan.solver.blocks import Line
from autoplan.solver.bounds import (
    class_data_times,
    once_a_step,
    time_bound,
    total_times,
    update_bound,
)
from autoplan.solver.candidates import Answers, Candidates, Problem
from autoplan.solver.chain_bound import relaxed_bound
from autoplan.solver.first_plan import FirstPlan
from autoplan.solver.memory_bounds import (
    kept_room,
    least_points,
    memory_bound,
    rank_rooms,
    state_ratio,
)
from autoplan.solver.pricing import Overflow, Priced, Slower
from autoplan.solver.recompute import Floor, LevelChoice, corners, least_seconds
from autoplan.solver.space import Configuration

__all__ = ["BoundLevel", "Outcome", "Searcher"]

Progress = Callable[[str], None]
_REPORT_PERIOD = 2.0
_DUST = 1e-9  # relative: what rounding may change
_NEVER = 4**20  # microbatches, over which a sum costs nothing


class BoundLevel(IntEnum):
    """How a bound was obtained, from cheap to tight."""

    ROOFLINE = 0
    OPERATORS = 1
    PROGRAM = 2
    LEVELS = 3


_Entry = tuple[float, int, BoundLevel, Configuration]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a search found; ``best`` is None when nothing fits or time ran out."""

    best: Priced | None = None
    lower_bound: float = float("inf")
    termination: str = "optimal"
    priced: list[Priced] = field(default_factory=list)
    overflows: list[Overflow] = field(default_factory=list)
    enumerated: int = 0
    pruned_memory: int = 0
    pruned_time: int = 0
    slower: list[Slower] = field(default_factory=list)


class Searcher(Candidates):
    """Runs searches over subsets of one problem's space and keeps what they share."""

    def __init__(
        self,
        problem: Problem,
        progress: Progress | None = None,
        answers: Answers | None = None,
    ) -> None:
        super().__init__(problem, answers)
        self._progress = progress
        self._reported = time.monotonic()
        self.fallback: Priced | None = None

    def beside(self, problem: Problem) -> Searcher:
        """Another problem about the same graphs, machine and optimizer, which shares answers."""
        assert self.answers.serves(problem)
        return Searcher(problem, self._progress, self.answers)

    def run(
        self,
        configurations: Iterable[Configuration],
        *,
        phase: str = "search",
        known: Priced | None = None,
    ) -> Outcome:
        """Best of those configurations and of a plan that is ``known``."""
        outcome = Outcome(best=known)
        heap: list[_Entry] = []
        filled = False
        try:
            self._fill(heap, configurations, outcome, phase)
            filled = True
            self._drain(heap, outcome, phase)
        except KeyboardInterrupt:
            outcome.termination = "interrupted"
            if not filled:
                outcome.lower_bound = 0.0
        if heap:
            outcome.lower_bound = min(outcome.lower_bound, heap[0][0])
        outcome.pruned_time = len(heap)
        return outcome

    def first_plan(self, configurations: Sequence[Configuration]) -> Priced | None:
        """A plan to fall back on, which may be far from the best."""
        finder = FirstPlan(
            price=self.result,
            memory=self.memory_needed,
            bound=lambda configuration: self.bound(configuration, BoundLevel.ROOFLINE),
            memory_limit=self.problem.memory_limit,
            deadline=self.problem.deadline,
        )
        try:
            self.fallback = finder.find(configurations)
        except KeyboardInterrupt:
            self.fallback = finder.best
            raise
        return self.fallback

    def _fill(
        self,
        heap: list[_Entry],
        configurations: Iterable[Configuration],
        outcome: Outcome,
        phase: str,
    ) -> None:
        for order, configuration in enumerate(configurations):
            outcome.enumerated += 1
            if not self.sized(configuration.micro_batch_size):
                self._report(outcome, 0.0, phase)
                if time.monotonic() > self.problem.deadline:
                    outcome.termination, outcome.lower_bound = "time_limit", 0.0
                    continue
            if self.memory_needed(configuration) > self.problem.memory_limit:
                outcome.pruned_memory += 1
                continue
            bound = self.bound(configuration, BoundLevel.ROOFLINE)
            heap.append((bound, order, BoundLevel.ROOFLINE, configuration))
        heapq.heapify(heap)

    def _drain(self, heap: list[_Entry], outcome: Outcome, phase: str) -> None:
        while heap:
            self._report(outcome, heap[0][0], phase)
            found = outcome.best.step_time if outcome.best else float("inf")
            if heap[0][0] >= found * (1 - max(self.problem.gap, _DUST)):
                return
            if time.monotonic() > self.problem.deadline:
                outcome.termination = "time_limit"
                return
            bound, order, level, configuration = heap[0]
            try:
                if level < BoundLevel.LEVELS:
                    level = BoundLevel(level + 1)
                    tighter = max(bound, self.bound(configuration, level))
                    heapq.heapreplace(heap, (tighter, order, level, configuration))
                    continue
                result = self.result(configuration, found)
            except SolverLimitError:
                outcome.termination = "time_limit"
                return
            heapq.heappop(heap)
            if isinstance(result, Overflow):
                outcome.overflows.append(result)
                if configuration.mesh.tp > 1 or configuration.virtual_stages > 1:
                    # No weight or share of memory tried fits; others might.
                    outcome.lower_bound = min(outcome.lower_bound, bound)
                continue
            if isinstance(result, Slower):
                outcome.slower.append(result)
                outcome.lower_bound = min(outcome.lower_bound, bound)
                continue
            if bound > result.step_time * (1 + _DUST):
                raise InternalError(
                    f"bound {bound} s of {configuration.label()} exceeds its price "
                    f"{result.step_time} s",
                    hint="please report this with the command that you ran",
                )
            outcome.lower_bound = min(outcome.lower_bound, bound)
            outcome.priced.append(result)
            if outcome.best is None or result.step_time < outcome.best.step_time:
                outcome.best = result

    def memory_needed(self, configuration: Configuration) -> int:
        """Lower bound of the bytes on the fullest rank."""
        return memory_bound(
            self.size(configuration.micro_batch_size),
            configuration,
            self.itemsize,
            levels=self.levels(configuration),
            update=self.problem.update,
        )

    def bound(self, configuration: Configuration, level: BoundLevel) -> float:
        """Seconds that the configuration's step takes at least."""
        size, tp = configuration.micro_batch_size, configuration.mesh.tp
        if level is BoundLevel.ROOFLINE:
            least = self.roofline(size).microbatch(tp)
            return self._time_bound(configuration, least, least)
        blocks = self.blocks.class_bounds(size, tp)
        alone = [
            {level: [Line(0.0, 1.0, b[level])] for level in self.levels(configuration)}
            for b in blocks
        ]
        floors = self._floors(configuration, alone)
        operators = self._least(configuration, floors)
        program = operators
        if level is BoundLevel.PROGRAM:
            # Recompute adds at least its operators to the optimum without it.
            without = sum(
                count * block[Recompute.NONE]
                for count, block in zip(self.size(size).copies, blocks, strict=True)
            )
            point = self.point(configuration)
            program = point.microbatch_bound + operators - without
        elif level is BoundLevel.LEVELS:
            short = self._short(configuration, operators, blocks)
            if short or (configuration.pipelined and tp > 1):
                along = self._level_bound(configuration, short=short)
                return max(along, self._around(configuration, operators, program))
        elif level is BoundLevel.OPERATORS and configuration.pipelined:
            along = self._along(configuration, floors, whole_inputs=False)
            return max(along, self._around(configuration, operators, program))
        return self._time_bound(configuration, operators, program)

    def _around(self, configuration: Configuration, operators: float, program: float) -> float:
        """Least seconds of ranks that take turns at several stages, whose waits `_along` omits."""
        if not configuration.looped:
            return 0.0
        return self._time_bound(configuration, operators, program)

    def _level_bound(self, configuration: Configuration, *, short: bool) -> float:
        """Seconds at least, by what each level of each class takes and holds on its own.

        Unless memory is ``short``, the first level counts, at no more than it takes.
        """
        question = replace(
            self.question(configuration),
            state_ratio=state_ratio(
                self.size(configuration.micro_batch_size),
                configuration,
                self.itemsize,
                update=self.problem.update,
            ),
        )
        if configuration.pipelined:
            # Sums of partial gradients delay the end of their own stage only.
            question = replace(question, spread=_NEVER)
        levels = self.levels(configuration)[: None if short else 1]
        frames = self.blocks.level_bounds(question, levels, self.problem.deadline, weighted=short)
        least = math.inf
        for placement, blocks in frames:
            whole = placement == Replicate()
            floors = self._floors(configuration, blocks, whole_inputs=whole)
            if configuration.pipelined:
                bound = self._along(configuration, floors, whole_inputs=whole)
            else:
                program = self._least(configuration, floors)
                bound = self._time_bound(configuration, program, program)
            least = min(least, bound)
        return least

    def _floors(
        self,
        configuration: Configuration,
        blocks: Sequence[Mapping[Recompute, Sequence[Line]]],
        *,
        whole_inputs: bool = False,
    ) -> list[list[Floor]]:
        """What a copy of each class may be at best, at all levels, its state not counted.

        ``whole_inputs``: what blocks hand on, and full recompute keeps, isn't sharded.
        """
        size, tp = self.size(configuration.micro_batch_size), configuration.mesh.tp
        found = []
        for block, kept, own, tied in zip(
            blocks, size.kept, size.parameters, size.tied, strict=True
        ):
            # The state is counted as if all were sharded; more of it counts as bytes kept.
            stored = (own[0] // tp + tied) * self.itemsize
            options: list[Floor] = []
            for level in block:
                whole = whole_inputs and level is Recompute.FULL
                lines = [
                    (line.weight, line.least - line.weight * line.state_ratio * stored)
                    for line in block[level]
                ]
                options += corners(lines, kept[level] // (1 if whole else tp))
            found.append(options)
        return found

    def _along(
        self,
        configuration: Configuration,
        floors: Sequence[Sequence[Floor]],
        *,
        whole_inputs: bool,
    ) -> float:
        """Least seconds of a pipeline, given what a copy of each class may be at best."""
        problem, size = self.problem, self.size(configuration.micro_batch_size)
        data = self._data_times(configuration)
        points = least_points(
            size,
            configuration,
            floors,
            data,
            self.itemsize,
            update=problem.update,
        )
        ranks = rank_rooms(size, configuration, problem.memory_limit, whole_inputs=whole_inputs)
        if min(left for rank in ranks for _, left in rank.moments) <= 0:
            return math.inf
        least = relaxed_bound(
            points,
            size.copies,
            ranks=ranks,
            microbatches=configuration.microbatches,
            once=[once_a_step(times, configuration) for times in data],
            whole=configuration.schedule not in SPLIT,
        )
        end = update_bound(
            size, configuration, problem.cluster, self.itemsize, update=problem.update
        )
        return least + end

    def _short(
        self,
        configuration: Configuration,
        operators: float,
        blocks: Sequence[Mapping[Recompute, float]],
    ) -> bool:
        """Whether memory forces some recompute, or strategies that are not the fastest."""
        copies = self.size(configuration.micro_batch_size).copies
        level = self.levels(configuration)[0]
        least = sum(count * block[level] for count, block in zip(copies, blocks, strict=True))
        if operators > least * (1 + _DUST) or level is not Recompute.NONE:
            return True
        return configuration.mesh.tp > 1 and not self._fits(
            configuration, [self.point(configuration)]
        )

    def _least(self, configuration: Configuration, floors: Sequence[Sequence[Floor]]) -> float:
        """Least seconds of a microbatch, given what a copy of each class may be at best."""
        size = self.size(configuration.micro_batch_size)
        room = kept_room(
            size,
            configuration,
            self.itemsize,
            self.problem.memory_limit,
            update=self.problem.update,
        )
        choices = [
            LevelChoice(count, options) for count, options in zip(size.copies, floors, strict=True)
        ]
        return least_seconds(choices, room)

    def _time_bound(self, configuration: Configuration, operators: float, program: float) -> float:
        size = self.size(configuration.micro_batch_size)
        return time_bound(
            size,
            configuration,
            self.problem.cluster,
            operators=operators,
            program=program,
            data=total_times(size.copies, self._data_times(configuration)),
            itemsize=self.itemsize,
            update=self.problem.update,
        )

    def _data_times(self, configuration: Configuration) -> list[DataParallelTimes]:
        """Seconds of the data-parallel collectives of a copy of each class."""
        key = (configuration.mesh, configuration.zero, configuration.sync)
        known = self.answers.data_times
        if key not in known:
            known[key] = class_data_times(
                self.size(configuration.micro_batch_size),
                configuration,
                self.problem.cluster,
                self.itemsize,
            )
        return known[key]

    def _report(self, outcome: Outcome, bound: float, phase: str) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._reported < _REPORT_PERIOD:
            return
        self._reported = now
        found = [plan.step_time for plan in (outcome.best, self.fallback) if plan is not None]
        best = f"best {min(found):.4g} s" if found else "no plan yet"
        left = max(0.0, self.problem.deadline - now)
        self._progress(
            f"{phase}: {best}, bound {bound:.4g} s, "
            f"{len(outcome.priced)} configurations priced, {left:.0f} s left"
        )
