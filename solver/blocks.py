"""Cost of every class of blocks at given degrees: intra-operator solutions, cached.

A `ModelPoint` is one choice for the whole chain: the placement of the tensors that cross
block boundaries, the storage of tied parameters, and for each class the strategies that the
intra-operator program found. Points of one key differ in how much they favour memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autoplan.costs.block import BlockCost, block_cost, host_times
from autoplan.costs.collectives import collective_time
from autoplan.errors import InfeasibleError
from autoplan.ir.graph import BlockClass, Graph, Tensor
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.mesh import Group, spread
from autoplan.ir.placement import CollectiveKind, Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.intra import BlockPrograms, BlockSolution, Setting
from autoplan.solver.offers import offers
from autoplan.solver.problem import Weights

__all__ = ["ALPHAS", "BlockPricer", "ModelPoint", "Question", "boundary_placements"]

ALPHAS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
"""Weights of memory: 0 finds the fastest strategies, larger ones trade time for bytes.

A weight alpha values the memory of a block at alpha times its time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the strategies of a model are optimal for.

    ``spread`` is the number of microbatches that share the once-a-step sum of a partial gradient
    in the compute dtype. ``state_ratio`` is
    how many bytes of memory a byte of parameters takes for each byte of saved activations.
    ``once`` is seconds for a local byte of parameters: a microbatch's share of what the step
    does with it at its end.
    """

    size: int
    tp: int
    recompute: Recompute
    spread: int
    alpha: float
    state_ratio: float
    once: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPoint:
    """Strategies and recompute level of every class, and what they cost for one microbatch."""

    boundary: Placement
    boundaries: tuple[tuple[tuple[Placement, ...], tuple[Placement, ...]], ...]
    """Placements at each class's start and end."""
    levels: tuple[Recompute, ...]
    solutions: tuple[BlockSolution, ...]
    costs: tuple[BlockCost, ...]
    microbatch_bound: float
    """Least seconds of a microbatch through the chain, partial gradients spread over the step."""
    scattered: bool = False
    """Whether ranks of the model axis share a whole message to a stage, and gather it there."""


def boundary_placements(graph: Graph, ranks: int) -> tuple[Placement, ...]:
    """Placements considered for the tensors between blocks: whole, or sharded on one dim.

    Dim 0 is the microbatch; sharding it on tp is data parallelism under another name, so it is
    left to the data axes. The last dim is what norms reduce over, so no norm could run on it.
    """
    if ranks == 1:
        return (Replicate(),)
    dims = {
        dim
        for block in graph.classes
        for name in block.outputs
        for dim in range(1, max(2, len(block.tensor(name).shape) - 1))
        if len(block.tensor(name).shape) > 1 and block.tensor(name).shape[dim] % ranks == 0
    }
    return (Replicate(), *(Shard(dim) for dim in sorted(dims)))


def _at_boundary(tensor: Tensor, placement: Placement, ranks: int) -> Placement:
    if isinstance(placement, Shard) and (
        placement.dim >= len(tensor.shape) or tensor.shape[placement.dim] % ranks
    ):
        return Replicate()
    return placement


def _ends(
    block: BlockClass, boundary: Placement, tp: int
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    ins = tuple(_at_boundary(block.tensor(name), boundary, tp) for name in block.inputs)
    outs = tuple(_at_boundary(block.tensor(name), boundary, tp) for name in block.outputs)
    return ins, outs


@dataclass(frozen=True, slots=True)
class _ClassBound:
    """Least seconds of a block's forward and backward, and of what recompute adds by level."""

    forward: float
    backward: float
    again: Mapping[Recompute, float]


# Combinations of tied placements that are all tried.
_MOST_TIED = 64


class BlockPricer:
    """Solves and prices block classes on the tp axis, each distinct question once."""

    def __init__(self, graphs: Mapping[int, Graph], cluster: Cluster) -> None:
        self._graphs = graphs
        self._cluster = cluster
        self._bounds: dict[tuple[int, int, int], _ClassBound] = {}
        self._solved: dict[tuple[object, ...], BlockSolution] = {}
        self._points: dict[Question, ModelPoint] = {}
        self._programs = BlockPrograms(cluster)

    def group(self, tp: int) -> Group:
        """The tp group: neighbours, so inside the innermost level as far as it is large enough."""
        return spread(tp, 1, self._cluster.sizes, world=self._cluster.ranks)

    def quick_bound(self, size: int, tp: int, *, recompute: Recompute) -> float:
        """Seconds of one microbatch through the whole model that no strategies can beat."""
        graph = self._graphs[size]
        counts = class_counts(graph)
        total = 0.0
        for index, count in enumerate(counts):
            least = self._class_bound(graph, size, index, tp)
            total += count * (least.forward + least.backward + least.again[recompute])
        return total

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

    def point(self, question: Question, deadline: float) -> ModelPoint:
        """Best point for a question: over boundary placements and tied storage."""
        question = _canonical(question)
        if question not in self._points:
            self._points[question] = self._best_point(question, deadline)
        return self._points[question]

    def _best_point(self, question: Question, deadline: float) -> ModelPoint:
        graph = self._graphs[question.size]
        counts = class_counts(graph)
        best: tuple[float, Placement, list[BlockSolution]] | None = None
        refused: InfeasibleError | None = None
        for boundary in boundary_placements(graph, question.tp):
            for tied in self._tied_choices(graph, question, boundary, deadline):
                enough = math.inf if best is None else best[0] * (1 - 1e-9)
                objective = 0.0
                solved = []
                try:
                    for index, count in enumerate(counts):
                        item = self._solve(graph, index, question, boundary, tied, deadline)
                        solved.append(item)
                        objective += count * item.objective
                        if objective >= enough:
                            break
                    else:
                        best = objective, boundary, solved
                except InfeasibleError as error:
                    refused = error  # no strategy of some operator has these tied placements
        if best is None:
            assert refused is not None
            raise refused
        point = self._model_point(graph, question, best[1], best[2])
        if self._has_many_ties(graph, question.tp):
            # Not all were tried: only classes free of ties bound what the others take.
            free = min(
                sum(
                    count * self._solve(graph, index, question, boundary, {}, deadline).bound
                    for index, count in enumerate(counts)
                )
                for boundary in boundary_placements(graph, question.tp)
            )
            point = replace(point, microbatch_bound=min(point.microbatch_bound, free))
        return point

    def _solve(
        self,
        graph: Graph,
        index: int,
        question: Question,
        boundary: Placement,
        tied: Mapping[str, Placement],
        deadline: float,
    ) -> BlockSolution:
        block = graph.classes[index]
        fixed = fixed_parameters(graph, index, tied)
        key = (question, index, boundary, tuple(sorted(fixed.items())))
        if key in self._solved:
            return self._solved[key]
        group = self.group(question.tp)
        ins, outs = _ends(block, boundary, question.tp)
        parameter_cost, memory_weight = self._memory_weights(graph, index, question)
        setting = Setting(
            boundary_in=ins,
            boundary_out=outs,
            fixed=tuple(sorted(fixed.items())),
            recompute=question.recompute,
            keeps=memory_weight > 0,
        )
        weights = Weights(
            stored=parameter_cost + question.once,
            summed=self._partial_grad_cost(group) / question.spread,
            held=memory_weight,
        )
        solution = self._programs.solve(block, group, setting, weights, deadline)
        self._solved[key] = solution
        return solution

    def _model_point(
        self, graph: Graph, question: Question, boundary: Placement, solved: list[BlockSolution]
    ) -> ModelPoint:
        group = self.group(question.tp)
        ends = tuple(_ends(block, boundary, question.tp) for block in graph.classes)
        return ModelPoint(
            boundary=boundary,
            boundaries=ends,
            levels=(question.recompute,) * len(graph.classes),
            solutions=tuple(solved),
            costs=tuple(
                block_cost(block, solution.strategies, *sides, group, self._cluster)
                for block, solution, sides in zip(graph.classes, solved, ends, strict=True)
            ),
            microbatch_bound=sum(
                count * max(solution.bound, self._host_time(block, question))
                for count, block, solution in zip(
                    class_counts(graph), graph.classes, solved, strict=True
                )
            ),
        )

    def _host_time(self, block: BlockClass, question: Question) -> float:
        host = host_times(block, self._cluster.accelerator)
        passes = 1 if question.recompute is Recompute.NONE else 2
        return host.forward * passes + host.backward

    def _partial_grad_cost(self, group: Group) -> float:
        payload = 2**30  # large, so that the rate is below that of any real sum
        return collective_time(CollectiveKind.ALL_REDUCE, payload, group, self._cluster) / payload

    def _memory_weights(self, graph: Graph, index: int, question: Question) -> tuple[float, float]:
        """Seconds for a local byte of parameters, and for a byte kept to the backward."""
        if question.alpha == 0.0:
            return 0.0, 0.0
        block = graph.classes[index]
        least = self._class_bound(graph, question.size, index, question.tp)
        parameters = sum(block.tensor(name).size for name in block.parameters)
        saved = 0  # of full recompute: only the boundary is kept, whatever the strategies
        if question.recompute is Recompute.NONE:
            saved = sum(block.tensor(name).size for op in block.ops for name in op.saved)
        elif question.recompute is Recompute.SELECTIVE:
            kept = [name for op in block.ops if is_kept(op) for name in op.outputs]
            saved = sum(block.tensor(name).size for name in kept)
        weighted = question.state_ratio * parameters + saved
        price = question.alpha * (least.forward + least.backward) / max(1.0, weighted)
        return price * question.state_ratio, price if saved else 0.0

    def _tied_choices(
        self, graph: Graph, question: Question, boundary: Placement, deadline: float
    ) -> Iterator[dict[str, Placement]]:
        """Storage choices of parameters that several classes use: they must agree on one.

        Where there are too many, those that each class would choose alone, and all whole.
        """
        options = self._tied_options(graph, question.tp)
        if self._has_many_ties(graph, question.tp):
            whole: dict[str, Placement] = dict.fromkeys(options, Replicate())
            yield whole
            for index in range(len(graph.classes)):
                alone = self._solve(graph, index, question, boundary, {}, deadline)
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
                offered = _storage_options(graph.classes[index], local, tp, self._cluster)
                legal = offered if legal is None else [p for p in legal if p in offered]
            options[fqn] = legal or [Replicate()]
        return options


def _canonical(question: Question) -> Question:
    """The question whose answer serves: nearby ones share it.

    Rounding ``spread`` up to a power of four keeps the bound valid.
    """
    if question.tp == 1:
        return replace(question, spread=1, alpha=0.0, state_ratio=1.0, once=0.0)
    ratio = 4.0 ** round(math.log(max(question.state_ratio, 1e-3), 4)) if question.alpha else 1.0
    once = 2.0 ** round(math.log2(question.once)) if question.once else 0.0
    spread = 4 ** math.ceil(math.log(question.spread, 4))
    return replace(question, spread=spread, state_ratio=ratio, once=once)


@by_identity(64)
def class_counts(graph: Graph) -> list[int]:
    """Instances of each class."""
    counts = [0] * len(graph.classes)
    for instance in graph.instances:
        counts[instance.block_class] += 1
    return counts


@by_identity(64)
def shared_parameters(graph: Graph) -> dict[str, list[tuple[int, str]]]:
    """FQN to (class, local name) of its uses, for parameters that more than one class uses."""
    uses: dict[str, list[tuple[int, str]]] = {}
    for instance in graph.instances:
        block = graph.block_class(instance)
        for local, fqn in zip(block.parameters, instance.parameters, strict=True):
            entry = (instance.block_class, local)
            if entry not in uses.setdefault(fqn, []):
                uses[fqn].append(entry)
    return {fqn: found for fqn, found in uses.items() if len(found) > 1}


def fixed_parameters(
    graph: Graph, index: int, tied: Mapping[str, Placement]
) -> dict[str, Placement]:
    """Storage of tied parameters by the local names of one class."""
    fixed: dict[str, Placement] = {}
    for fqn, uses in shared_parameters(graph).items():
        for used_in, local in uses:
            if used_in == index and fqn in tied:
                fixed[local] = tied[fqn]
    return fixed


def _storage_options(block: BlockClass, name: str, tp: int, cluster: Cluster) -> list[Placement]:
    options: list[Placement] | None = None
    for op, priced in zip(block.ops, offers(block, tp, cluster.accelerator), strict=True):
        for slot, used in enumerate(op.inputs):
            if used != name:
                continue
            offered: list[Placement] = []
            for strategy, _ in priced:
                placement = _storage(strategy, slot)
                if placement not in offered:
                    offered.append(placement)
            options = offered if options is None else [p for p in options if p in offered]
    return options or [Replicate()]


def _storage(strategy: OpStrategy, slot: int) -> Placement:
    placement = strategy.inputs[slot]
    return placement if isinstance(placement, Shard) else Replicate()
