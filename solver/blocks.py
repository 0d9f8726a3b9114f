"""Cost of every class of blocks at given degrees: intra-operator solutions, cached.

A `ModelPoint` has a frame (what classes must agree on) and for each class the strategies that
the intra-operator program found. Points of one frame can be mixed, class by class and copy by
copy: they differ in recompute level and in how much they favour memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from autoplan.costs.block import BlockCost, block_cost, host_times
from autoplan.costs.collectives import collective_time
from autoplan.errors import InfeasibleError
from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group, spread
from autoplan.ir.placement import CollectiveKind, Placement, Replicate
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.frames import (
    Frame,
    block_ends,
    boundary_placements,
    class_counts,
    fixed_parameters,
    placed_parameters,
    shared_parameters,
    storage_options,
)
from autoplan.solver.intra import BlockPrograms, BlockSolution, Setting
from autoplan.solver.offers import offers
from autoplan.solver.problem import Weights

__all__ = ["BlockPricer", "Line", "ModelPoint", "Question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the strategies of a model are optimal for.

    ``spread`` is the number of microbatches that share the once-a-step sum of a partial gradient
    in the compute dtype. ``alpha`` weighs memory: all that the model holds without recompute is
    worth alpha times its least time. ``state_ratio`` is
    how many bytes of memory a byte of parameters takes for each byte of saved activations.
    ``once`` is seconds for a local byte of parameters: a microbatch's share of what the step
    does with it at its end. ``least``: only what is surely kept counts as memory, for a bound.
    """

    size: int
    tp: int
    recompute: Recompute
    spread: int
    alpha: float
    state_ratio: float
    once: float = 0.0
    least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPoint:
    """Strategies and recompute level of every class, and what they cost for one microbatch."""

    frame: Frame
    boundaries: tuple[tuple[tuple[Placement, ...], tuple[Placement, ...]], ...]
    """Placements at each class's start and end."""
    levels: tuple[Recompute, ...]
    solutions: tuple[BlockSolution, ...]
    costs: tuple[BlockCost, ...]
    microbatch_bound: float
    """Least seconds of a microbatch through the chain, partial gradients spread over the step."""
    scattered: bool = False
    """Whether ranks of the model axis share a whole message to a stage, and gather it there."""


class Line(NamedTuple):
    """What strategies of a block can't beat: seconds, and ``weight`` for a byte that it holds.

    Those are the bytes kept, and ``state_ratio`` times those of parameters.
    """

    weight: float
    state_ratio: float
    least: float


@dataclass(frozen=True, slots=True)
class _ClassBound:
    """Least seconds of a block's forward and backward, and of what recompute adds by level."""

    forward: float
    backward: float
    again: Mapping[Recompute, float]


Barred = tuple[tuple[str, OpStrategy], ...]

# Combinations of tied placements that are all tried.
_MOST_TIED = 64

_BOUND_WEIGHTS = (0.0, 0.2, 0.6, 2.0)
"""Weights of memory at which blocks are bounded (`Question.alpha`)."""


class BlockPricer:
    """Solves and prices block classes on the tp axis, each distinct question once."""

    def __init__(self, graphs: Mapping[int, Graph], cluster: Cluster) -> None:
        self._graphs = graphs
        self._cluster = cluster
        self._stored: Mapping[str, Placement] = {}
        self._bounds: dict[tuple[int, int, int], _ClassBound] = {}
        self._solved: dict[tuple[object, ...], BlockSolution] = {}
        self._weights: dict[tuple[int, int, float], float] = {}
        self._relaxations: dict[tuple[Question, int, Placement], float] = {}
        self._points: dict[tuple[Question, Frame | None], ModelPoint] = {}
        self._costs: dict[
            tuple[object, ...], tuple[BlockClass, Mapping[str, OpStrategy], BlockCost]
        ] = {}
        self._programs = BlockPrograms(cluster)

    def storing(self, stored: Mapping[str, Placement]) -> BlockPricer:
        """A pricer that shares what this one knows, with those parameters (by FQN) stored so.

        Copies of a class must have the same ones.
        """
        if stored == self._stored:
            return self
        other = copy(self)
        other._stored, other._points = stored, {}
        return other

    def group(self, tp: int) -> Group:
        """The tp group: neighbours, so inside the innermost level as far as it is large enough."""
        return spread(tp, 1, self._cluster.sizes, world=self._cluster.ranks)

    def class_bounds(self, size: int, tp: int) -> list[dict[Recompute, float]]:
        """Seconds of a copy of each class by level that no strategies can beat."""
        graph = self._graphs[size]
        found = []
        for index in range(len(graph.classes)):
            least = self._class_bound(graph, size, index, tp)
            both = least.forward + least.backward
            found.append({level: both + again for level, again in least.again.items()})
        return found

    def level_bounds(
        self,
        question: Question,
        levels: Sequence[Recompute],
        deadline: float,
        *,
        weighted: bool = True,
    ) -> list[tuple[Placement, list[dict[Recompute, list[Line]]]]]:
        """What no strategies of a copy of each class can beat, by boundary and level.

        Classes are free to store tied parameters as suits each. Unless ``weighted``, only
        seconds count.
        """
        graph = self._graphs[question.size]
        found = []
        weights = _BOUND_WEIGHTS if question.tp > 1 and weighted else (0.0,)
        for boundary in boundary_placements(graph, question.tp):
            frame = Frame(boundary)
            blocks: list[dict[Recompute, list[Line]]] = [{} for _ in graph.classes]
            for level, alpha in itertools.product(levels, weights):
                asked = _canonical(replace(question, recompute=level, alpha=alpha, least=alpha > 0))
                weight = self._memory_weight(graph, asked)
                for index, block in enumerate(graph.classes):
                    if alpha:
                        least = self._relaxed(graph, index, asked, frame, deadline)
                    else:
                        solved = self._solve(graph, index, asked, frame, deadline)
                        least = max(solved.bound, self._host_time(block, asked))
                    line = Line(weight, asked.state_ratio, least)
                    blocks[index].setdefault(level, []).append(line)
            found.append((boundary, blocks))
        return found

    def _class_bound(self, graph: Graph, size: int, index: int, tp: int) -> _ClassBound:
        key = (size, index, tp)
        if key not in self._bounds:
            block = graph.classes[index]
            forward = backward = again = 0.0
            priced = offers(block, tp, self._cluster.accelerator)
            for op, offered in zip(block.ops, priced, strict=True):
                least = min(time.forward for _, time in offered)
                forward += least
                backward += min(time.backward for _, time in offered)
                again += 0.0 if is_kept(op) else least
            host = host_times(block, self._cluster.accelerator)
            forward = max(forward, host.forward)
            self._bounds[key] = _ClassBound(
                forward,
                max(backward, host.backward),
                {
                    Recompute.NONE: 0.0,
                    Recompute.SELECTIVE: max(again, host.forward),
                    Recompute.FULL: forward,
                },
            )
        return self._bounds[key]

    def point(self, question: Question, deadline: float, frame: Frame | None = None) -> ModelPoint:
        """Best point for a question, in a frame if one is given."""
        question = _canonical(question)
        if (question, frame) not in self._points:
            found = self._best_point(question, deadline, frame)
            self._points[question, frame] = self._points[question, found.frame] = found
        return self._points[question, frame]

    def block(
        self, question: Question, index: int, frame: Frame, deadline: float, barred: Barred = ()
    ) -> BlockSolution:
        """Best strategies of one class in a frame; none of those ``barred`` (by operator)."""
        question = _canonical(question)
        graph = self._graphs[question.size]
        return self._solve(graph, index, question, frame, deadline, barred)

    def _best_point(self, question: Question, deadline: float, frame: Frame | None) -> ModelPoint:
        graph = self._graphs[question.size]
        counts = class_counts(graph)
        best: tuple[float, Frame, list[BlockSolution]] | None = None
        refused: InfeasibleError | None = None
        frames = self._frames(graph, question, deadline) if frame is None else (frame,)
        for tried in frames:
            enough = math.inf if best is None else best[0] * (1 - 1e-9)
            objective = 0.0
            solved = []
            try:
                for index, count in enumerate(counts):
                    item = self._solve(graph, index, question, tried, deadline)
                    solved.append(item)
                    objective += count * item.objective
                    if objective >= enough:
                        break
                else:
                    best = objective, tried, solved
            except InfeasibleError as error:
                refused = error  # no strategy of some operator has these tied placements
        if best is None:
            assert refused is not None
            raise refused
        point = self._model_point(graph, question, best[1], best[2])
        if frame is None and self._has_many_ties(graph, question.tp):
            # Not all were tried: only classes free of ties bound what the others take.
            free = min(
                sum(
                    count * self._solve(graph, index, question, Frame(boundary), deadline).bound
                    for index, count in enumerate(counts)
                )
                for boundary in boundary_placements(graph, question.tp)
            )
            point = replace(point, microbatch_bound=min(point.microbatch_bound, free))
        return point

    def _frames(self, graph: Graph, question: Question, deadline: float) -> Iterator[Frame]:
        for boundary in boundary_placements(graph, question.tp):
            for tied in self._tied_choices(graph, question, boundary, deadline):
                yield Frame(boundary, tuple(sorted(tied.items())))

    def _solve(
        self,
        graph: Graph,
        index: int,
        question: Question,
        frame: Frame,
        deadline: float,
        barred: Barred = (),
    ) -> BlockSolution:
        block = graph.classes[index]
        fixed = fixed_parameters(graph, index, dict(frame.tied))
        fixed |= placed_parameters(graph, index, self._stored)
        key = (question, index, frame.boundary, tuple(sorted(fixed.items())), barred)
        if key in self._solved:
            return self._solved[key]
        asked = self._asked(graph, block, question, frame, fixed, barred)
        solution = self._programs.solve(block, *asked, deadline)
        self._solved[key] = solution
        return solution

    def _relaxed(
        self, graph: Graph, index: int, question: Question, frame: Frame, deadline: float
    ) -> float:
        """Objective that no strategies of a class are below."""
        key = (question, index, frame.boundary)
        if key not in self._relaxations:
            block = graph.classes[index]
            asked = self._asked(graph, block, question, frame, {})
            self._relaxations[key] = self._programs.bound(block, *asked, deadline)
        return self._relaxations[key]

    def _asked(
        self,
        graph: Graph,
        block: BlockClass,
        question: Question,
        frame: Frame,
        fixed: Mapping[str, Placement],
        barred: Barred = (),
    ) -> tuple[Group, Setting, Weights]:
        group = self.group(question.tp)
        ins, outs = block_ends(block, frame.boundary, question.tp)
        memory_weight = self._memory_weight(graph, question)
        setting = Setting(
            boundary_in=ins,
            boundary_out=outs,
            fixed=tuple(sorted(fixed.items())),
            recompute=question.recompute,
            keeps=memory_weight > 0,
            least=question.least,
            barred=barred,
        )
        weights = Weights(
            stored=memory_weight * question.state_ratio + question.once,
            summed=self._partial_grad_cost(group) / question.spread,
            held=memory_weight,
        )
        return group, setting, weights

    def _model_point(
        self, graph: Graph, question: Question, frame: Frame, solved: list[BlockSolution]
    ) -> ModelPoint:
        group = self.group(question.tp)
        ends = tuple(block_ends(block, frame.boundary, question.tp) for block in graph.classes)
        return ModelPoint(
            frame=frame,
            boundaries=ends,
            levels=(question.recompute,) * len(graph.classes),
            solutions=tuple(solved),
            costs=tuple(
                self._cost(block, solution.strategies, sides, group)
                for block, solution, sides in zip(graph.classes, solved, ends, strict=True)
            ),
            microbatch_bound=sum(
                count * max(solution.bound, self._host_time(block, question))
                for count, block, solution in zip(
                    class_counts(graph), graph.classes, solved, strict=True
                )
            ),
        )

    def _cost(
        self,
        block: BlockClass,
        strategies: Mapping[str, OpStrategy],
        ends: tuple[tuple[Placement, ...], tuple[Placement, ...]],
        group: Group,
    ) -> BlockCost:
        """Cost of a block; questions often have the same answer."""
        key = (id(block), group.ranks, ends, tuple(map(id, strategies.values())))
        if key not in self._costs:
            cost = block_cost(block, strategies, *ends, group, self._cluster)
            # What is kept beside the cost lives, so that no other object has its id.
            self._costs[key] = block, strategies, cost
        return self._costs[key][2]

    def _host_time(self, block: BlockClass, question: Question) -> float:
        host = host_times(block, self._cluster.accelerator)
        passes = 1 if question.recompute is Recompute.NONE else 2
        return host.forward * passes + host.backward

    def _partial_grad_cost(self, group: Group) -> float:
        payload = 2**30  # large, so that the rate is below that of any real sum
        return collective_time(CollectiveKind.ALL_REDUCE, payload, group, self._cluster) / payload

    def _memory_weight(self, graph: Graph, question: Question) -> float:
        """Seconds for a byte kept to the backward, the same for all classes and levels."""
        return question.alpha * self._weight_unit(graph, question) if question.alpha else 0.0

    def weight_at(self, question: Question, rate: float) -> float:
        """Weight of memory, to a power of two, at which a byte is worth ``rate`` seconds."""
        question = _canonical(replace(question, alpha=1.0))
        weight = rate / self._weight_unit(self._graphs[question.size], question)
        return 2.0 ** round(math.log2(weight)) if weight > 0 else 0.0

    def _weight_unit(self, graph: Graph, question: Question) -> float:
        """Seconds for a byte if the least time of all blocks is worth what they hold."""
        key = (question.size, question.tp, question.state_ratio)
        if key not in self._weights:
            seconds = weighted = 0.0
            for index, count in enumerate(class_counts(graph)):
                block = graph.classes[index]
                least = self._class_bound(graph, question.size, index, question.tp)
                parameters = sum(block.tensor(name).size for name in block.parameters)
                saved = sum(block.tensor(name).size for op in block.ops for name in op.saved)
                seconds += count * (least.forward + least.backward)
                weighted += count * (question.state_ratio * parameters + saved)
            self._weights[key] = seconds / max(1.0, weighted)
        return self._weights[key]

    def _tied_choices(
        self, graph: Graph, question: Question, boundary: Placement, deadline: float
    ) -> Iterator[dict[str, Placement]]:
        """Storage choices of parameters that several classes use: they must agree on one.

        Where there are too many, those that each class would choose alone, and all whole.
        """
        options = self._tied_options(graph, question.tp)
        if self._has_many_ties(graph, question.tp):
            whole: dict[str, Placement] = dict.fromkeys(options, Replicate())
            whole |= {fqn: self._stored[fqn] for fqn in options if fqn in self._stored}
            yield whole
            for index in range(len(graph.classes)):
                alone = self._solve(graph, index, question, Frame(boundary), deadline)
                chosen = {
                    fqn: alone.placements[local][0]
                    for fqn, uses in shared_parameters(graph).items()
                    for used_in, local in uses
                    if used_in == index
                }
                if all(placement in options[fqn] for fqn, placement in chosen.items()):
                    yield whole | chosen
            return
        for choice in itertools.product(*options.values()):
            yield dict(zip(options, choice, strict=True))

    def _has_many_ties(self, graph: Graph, tp: int) -> bool:
        return math.prod(map(len, self._tied_options(graph, tp).values())) > _MOST_TIED

    def _tied_options(self, graph: Graph, tp: int) -> dict[str, list[Placement]]:
        options: dict[str, list[Placement]] = {}
        for fqn, uses in shared_parameters(graph).items():
            legal: list[Placement] | None = None
            for index, local in uses:
                offered = storage_options(graph.classes[index], local, tp, self._cluster)
                legal = offered if legal is None else [p for p in legal if p in offered]
            options[fqn] = legal or [Replicate()]
            if fqn in self._stored:
                options[fqn] = [self._stored[fqn]]
        return options


def _canonical(question: Question) -> Question:
    """The question whose answer serves: nearby ones share it.

    Rounding ``spread`` up to a power of four keeps the bound valid.
    """
    if question.tp == 1:
        return replace(question, spread=1, alpha=0.0, state_ratio=1.0, once=0.0)
    ratio = 1.0
    if question.least:  # rounded down, it keeps the bound valid
        ratio = 2.0 ** math.floor(math.log2(max(question.state_ratio, 1e-3)))
    elif question.alpha:
        ratio = 4.0 ** round(math.log(max(question.state_ratio, 1e-3), 4))
    once = 2.0 ** round(math.log2(question.once)) if question.once else 0.0
    spread = 4 ** math.ceil(math.log(question.spread, 4))
    return replace(question, spread=spread, state_ratio=ratio, once=once)
