"""The outer search: best-first over configurations, with bounds, baselines and a deadline.

Every configuration enters a heap with a lower bound from its FLOP and bytes. When popped it is
given that of its operators' strategies, then the exact intra-operator optimum (tighter still),
then priced. The search ends when the least bound in the heap is no better than the best plan:
nothing left can win.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from autoplan.costs.memory import state_bytes
from autoplan.errors import InternalError, SolverLimitError, UsageError
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.recompute import Recompute
from autoplan.solver.blocks import ALPHAS, BlockPricer, ModelPoint, Question, class_counts
from autoplan.solver.bounds import (
    ModelSize,
    Roofline,
    memory_bound,
    model_size,
    roofline,
    time_bound,
)
from autoplan.solver.first_plan import FirstPlan
from autoplan.solver.pricing import Overflow, Priced, parameter_time, price
from autoplan.solver.space import Configuration, Pins

__all__ = [
    "BoundLevel",
    "GraphFamily",
    "Outcome",
    "Problem",
    "Searcher",
    "baseline_filters",
    "no_plan_yet",
    "require_any",
]

Progress = Callable[[str], None]
_REPORT_PERIOD = 2.0
_SAMPLE = 10**6
_WORTHWHILE = 1e-3  # of the step: what another answer must be able to save


class BoundLevel(IntEnum):
    """How a bound was obtained, from cheap to tight."""

    ROOFLINE = 0
    OPERATORS = 1
    WITHOUT_RECOMPUTE = 2
    PROGRAM = 3


_Entry = tuple[float, int, BoundLevel, Configuration]


class GraphFamily(dict[int, Graph]):
    """Graphs by microbatch size, made on first use."""

    def __init__(self, make: Callable[[int], Graph]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> Graph:
        self[size] = self._make(size)
        return self[size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is asked: graphs, machine, batch, bytes a rank, and a monotonic ``deadline``."""

    graphs: GraphFamily
    cluster: Cluster
    global_batch: int
    update: UpdateRule
    memory_limit: int
    deadline: float


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


class Searcher:
    """Runs searches over subsets of one problem's space and keeps what they share."""

    def __init__(self, problem: Problem, progress: Progress | None = None) -> None:
        self.problem = problem
        self.blocks = BlockPricer(problem.graphs, problem.cluster)
        self._progress = progress
        self._sizes: dict[int, ModelSize] = {}
        self._rooflines: dict[int, Roofline] = {}
        self._results: dict[Configuration, Priced | Overflow] = {}
        self._reported = time.monotonic()
        self.fallback: Priced | None = None

    def run(self, configurations: Iterable[Configuration], *, phase: str = "search") -> Outcome:
        """Best of those configurations."""
        outcome = Outcome()
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
            if configuration.micro_batch_size not in self._sizes:
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
            if heap[0][0] >= found * (1 - 1e-9):
                return
            if time.monotonic() > self.problem.deadline:
                outcome.termination = "time_limit"
                return
            bound, order, level, configuration = heap[0]
            try:
                if level < BoundLevel.PROGRAM:
                    level = BoundLevel(level + 1)
                    tighter = max(bound, self.bound(configuration, level))
                    heapq.heapreplace(heap, (tighter, order, level, configuration))
                    continue
                result = self.result(configuration)
            except SolverLimitError:
                outcome.termination = "time_limit"
                return
            heapq.heappop(heap)
            if isinstance(result, Overflow):
                outcome.overflows.append(result)
                if configuration.mesh.tp > 1:
                    # No memory weight tried fits; other strategies might.
                    outcome.lower_bound = min(outcome.lower_bound, bound)
                continue
            if bound > result.step_time * (1 + 1e-9):
                raise InternalError(
                    f"bound {bound} s of {configuration.label()} exceeds its price "
                    f"{result.step_time} s",
                    hint="please report this with the command that you ran",
                )
            outcome.lower_bound = min(outcome.lower_bound, bound)
            outcome.priced.append(result)
            if outcome.best is None or result.step_time < outcome.best.step_time:
                outcome.best = result

    def result(self, configuration: Configuration) -> Priced | Overflow:
        """Price of a configuration at the fastest strategies that fit."""
        if configuration not in self._results:
            self._results[configuration] = self._price(configuration)
        return self._results[configuration]

    def _price(self, configuration: Configuration) -> Priced | Overflow:
        """Price at the least memory weight that fits: the fastest strategies if they do."""
        fastest = self._price_at(configuration, ALPHAS[0])
        if isinstance(fastest, Priced):
            return self._with_fewer_parameters(configuration, fastest)
        if configuration.mesh.tp == 1:
            return fastest
        best = self._price_at(configuration, ALPHAS[-1])
        if isinstance(best, Overflow):
            return min(fastest, best, key=lambda overflow: overflow.peak_memory)
        low, high = 1, len(ALPHAS) - 1
        while low < high:
            middle = (low + high) // 2
            try:
                result = self._price_at(configuration, ALPHAS[middle])
            except SolverLimitError:
                return best
            if isinstance(result, Priced):
                high = middle
                if result.step_time < best.step_time:
                    best = result
            else:
                low = middle + 1
        return best

    def _with_fewer_parameters(self, configuration: Configuration, fastest: Priced) -> Priced:
        """The faster of a plan and of that for strategies which mind the end of the step.

        Its strategies are best for a microbatch. Where they leave parameters whole that could
        be sharded, the update and the sum of the gradients may cost more than that gains.
        """
        itemsize, mesh = self._itemsize(), configuration.mesh
        update = self.problem.update
        once = parameter_time(configuration, itemsize, self.problem.cluster, update=update)
        size = self.size(configuration.micro_batch_size)
        held = fastest.local_parameters(class_counts(self._graph(configuration)))
        spare = held - size.numel / mesh.tp
        if once * itemsize * spare / mesh.pp < _WORTHWHILE * fastest.step_time:
            return fastest
        try:
            other = self._price_at(configuration, ALPHAS[0], once / configuration.microbatches)
        except SolverLimitError:
            return fastest
        if isinstance(other, Priced) and other.step_time < fastest.step_time:
            return other
        return fastest

    def _graph(self, configuration: Configuration) -> Graph:
        return self.problem.graphs[configuration.micro_batch_size]

    def _price_at(
        self, configuration: Configuration, alpha: float, once: float = 0.0
    ) -> Priced | Overflow:
        return price(
            self.problem.graphs[configuration.micro_batch_size],
            configuration,
            self._point(configuration, alpha, once),
            self.problem.cluster,
            update=self.problem.update,
            memory_limit=self.problem.memory_limit,
        )

    def extend_deadline(self, deadline: float) -> None:
        """Let later searches run until ``deadline`` (monotonic seconds)."""
        self.problem = dataclasses.replace(self.problem, deadline=deadline)

    def memory_needed(self, configuration: Configuration) -> int:
        """Lower bound of the bytes on the fullest rank."""
        size = self.size(configuration.micro_batch_size)
        return memory_bound(size, configuration, self._itemsize(), update=self.problem.update)

    def size(self, micro_batch_size: int) -> ModelSize:
        """Whole-model sums at that microbatch size."""
        if micro_batch_size not in self._sizes:
            self._sizes[micro_batch_size] = model_size(self.problem.graphs[micro_batch_size])
        return self._sizes[micro_batch_size]

    def roofline(self, micro_batch_size: int) -> Roofline:
        """Least work of the model at that microbatch size."""
        if micro_batch_size not in self._rooflines:
            self._rooflines[micro_batch_size] = roofline(
                self.problem.graphs[micro_batch_size], self.problem.cluster.accelerator
            )
        return self._rooflines[micro_batch_size]

    def _itemsize(self) -> int:
        return dtype_size(next(iter(self.problem.graphs.values())).dtype)

    def _point(self, configuration: Configuration, alpha: float, once: float = 0.0) -> ModelPoint:
        mesh = configuration.mesh
        microbatches = configuration.microbatches
        # A stage holds on average about half of the pipeline's microbatches in flight.
        flight = min(microbatches, (mesh.pp + 1) / 2) if configuration.pipelined else 1
        itemsize = self._itemsize()
        settings = configuration.memory_settings(itemsize, update=self.problem.update)
        state = sum(state_bytes(_SAMPLE, _SAMPLE, settings)) / (_SAMPLE * itemsize)
        question = Question(
            size=configuration.micro_batch_size,
            tp=mesh.tp,
            recompute=configuration.recompute,
            spread=max(
                1, math.ceil(microbatches * itemsize / configuration.gradient_bytes(itemsize))
            ),
            alpha=alpha,
            state_ratio=state / flight,
            once=once,
        )
        return self.blocks.point(question, self.problem.deadline)

    def bound(self, configuration: Configuration, level: BoundLevel) -> float:
        """Seconds that the configuration's step takes at least."""
        size, tp = configuration.micro_batch_size, configuration.mesh.tp
        if level is BoundLevel.ROOFLINE:
            least = self.roofline(size).microbatch(tp, recompute=configuration.recompute)
            return self._time_bound(configuration, least, least)
        operators = self.blocks.quick_bound(size, tp, recompute=configuration.recompute)
        program = operators
        if level is BoundLevel.PROGRAM:
            program = self._point(configuration, 0.0).microbatch_bound
        elif (
            level is BoundLevel.WITHOUT_RECOMPUTE and configuration.recompute is not Recompute.NONE
        ):
            # Recompute adds at least its operators to the optimum without it.
            kept = dataclasses.replace(configuration, recompute=Recompute.NONE)
            again = operators - self.blocks.quick_bound(size, tp, recompute=Recompute.NONE)
            program = self._point(kept, 0.0).microbatch_bound + again
        return self._time_bound(configuration, operators, program)

    def _time_bound(self, configuration: Configuration, operators: float, program: float) -> float:
        size = configuration.micro_batch_size
        return time_bound(
            self.problem.graphs[size],
            self.size(size),
            configuration,
            self.problem.cluster,
            operators=operators,
            program=program,
            update=self.problem.update,
        )

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


def require_any(
    configurations: list[Configuration], pins: Pins, ranks: int, batch: int, blocks: int
) -> None:
    """Raise UsageError when no configuration of a model with ``blocks`` blocks is legal."""
    if configurations:
        return
    stages = [int(degree) for degree in pins.allowed.get("pp", ())]
    if stages and min(stages) > blocks:
        raise UsageError(
            f"--pp {min(stages)}: the model has {blocks} {'block' if blocks == 1 else 'blocks'}, "
            "and each stage needs one",
            hint=f"--pp {blocks} at most" if blocks > 1 else "leave --pp out",
        )
    fixed = ", ".join(f"--{n.replace('_', '-')} {','.join(v)}" for n, v in pins.allowed.items())
    if fixed:
        raise UsageError(
            f"no legal configuration of {ranks} ranks with global batch {batch} satisfies {fixed}",
            hint="drop one of these; dp_replicate x dp_shard must divide the global batch, "
            "--zero 1 to 3 need --dp-shard > 1, --schedule needs --pp > 1",
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


BaselineFilter = Callable[[Configuration], bool]


def baseline_filters(cluster: Cluster) -> Mapping[str, BaselineFilter]:
    """Plans that practitioners write by hand, as subsets of the space."""
    node = min(cluster.ranks_per_node, cluster.ranks)
    if node == cluster.ranks and node > 2:
        node //= 2  # a whole-cluster tp leaves no rank for data parallelism

    def plain(c: Configuration) -> bool:
        return c.mesh.tp == 1 and c.mesh.pp == 1

    filters: dict[str, BaselineFilter] = {
        "ddp": lambda c: plain(c) and c.zero == 0,
        "fsdp (zero 3)": lambda c: plain(c) and c.zero == 3 and c.mesh.dp_replicate == 1,
    }
    if node > 1:
        filters[f"tp {node} + zero 1"] = lambda c: (
            c.mesh.tp == node and c.mesh.pp == 1 and c.zero <= 1
        )
        filters[f"tp {node} + fsdp"] = lambda c: (
            c.mesh.tp == node and c.mesh.pp == 1 and c.zero == 3 and c.mesh.dp_replicate == 1
        )
        filters[f"tp {node} + pp + zero 1, 1f1b"] = lambda c: (
            c.mesh.tp == node and c.mesh.pp > 1 and c.zero <= 1 and c.schedule == "1f1b"
        )
    return filters
