"""Seconds and bytes of each class of blocks in a configuration: what stages are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.data_parallel import data_parallel_times
from autoplan.costs.dispatched import dispatched
from autoplan.costs.memory import (
    GENERATOR_STATE,
    BlockMemory,
    MemorySettings,
    state_bytes,
    unit_bytes,
)
from autoplan.costs.step import BlockTime
from autoplan.ir.graph import BlockClass, Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.recompute import Recompute
from autoplan.ir.variants import class_families
from autoplan.solver.between import local_counts
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.chain import ChainItem, Point
from autoplan.solver.space import Configuration

__all__ = ["Pieces", "chain_items", "pieces"]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Time and memory of a block, by class."""

    times: tuple[BlockTime, ...]
    memories: tuple[BlockMemory, ...]


def pieces(
    graph: Graph, configuration: Configuration, point: ModelPoint, cluster: Cluster
) -> Pieces:
    """Times and memory of each class (not instance)."""
    trainable = {p.fqn: p.trainable for p in graph.parameters}
    times, memories = [], []
    first_of = {i.block_class: i for i in reversed(graph.instances)}
    itemsize = dtype_size(graph.dtype)
    families = class_families(graph)
    seen: set[str] = set()
    unseen: dict[int, tuple[bool, ...]] = {}  # by family: which parameters are its own
    for index, (cost, level) in enumerate(zip(point.costs, point.levels, strict=True)):
        counts = local_counts(point, first_of[index])
        numel = sum(counts.values())
        learnt = sum(count for fqn, count in counts.items() if trainable[fqn])
        # A tied parameter is gathered and reduced once; two stages do so each for itself.
        bound = first_of[index].parameters
        if families[index] == index:
            unseen[index] = tuple(configuration.pipelined or fqn not in seen for fqn in bound)
            seen.update(counts)
        own = {f: counts[f] for f, new in zip(bound, unseen[families[index]], strict=True) if new}
        first_pass = second_pass = 0.0
        if (recompute := cluster.accelerator.recompute.get(level.value)) is not None:
            watched = _watched(graph.classes[index], point, index)
            first_pass, second_pass = recompute.of(watched)
        times.append(
            BlockTime(
                forward=cost.forward + first_pass,
                backward=cost.backward,
                tp_forward=cost.tp_forward,
                tp_backward=cost.tp_backward,
                again=cost.forward_again(level) + second_pass,
                data_parallel=data_parallel_times(
                    numel=sum(own.values()),
                    trainable=sum(n for fqn, n in own.items() if trainable[fqn]),
                    itemsize=itemsize,
                    zero=configuration.zero,
                    mesh=configuration.mesh,
                    cluster=cluster,
                    tensors=len(own),
                    sync=configuration.sync,
                ),
            )
        )
        held = cost.held.at(level)
        recomputed = cost.held.saves and level is not Recompute.NONE
        generator = GENERATOR_STATE if recomputed and cluster.accelerator.synchronous else 0
        memories.append(
            BlockMemory(
                numel=numel,
                trainable=learnt,
                largest=max((n for fqn, n in counts.items() if trainable[fqn]), default=0),
                kept=held.kept + generator,
                forward=held.forward,
                working=held.backward,
                fresh=held.fresh,
                boundary_in=cost.boundary,
                boundary_out=cost.boundary_out,
                inputs=cost.held.inputs,
                outputs=cost.held.outputs,
                kept_inputs=held.kept_inputs,
                read_inputs=cost.held.read,
                kept_outputs=held.kept_outputs,
                passed=cost.held.passed,
            )
        )
    return Pieces(tuple(times), tuple(memories))


def _watched(block: BlockClass, point: ModelPoint, index: int) -> int:
    """Operators of a block that recompute does something for besides running them again."""
    if point.levels[index] is not Recompute.SELECTIVE:
        return len(block.ops)
    strategies = point.solutions[index].strategies
    return sum(dispatched(op, strategies[op.name]) for op in block.ops)


def chain_items(
    graph: Graph,
    points: Sequence[ModelPoint],
    parts: Sequence[Pieces],
    settings: MemorySettings,
    sends: Sequence[float],
) -> list[ChainItem]:
    """Blocks as the cut takes them, each with the choice of one of the ``points``."""
    uses = Counter(fqn for instance in graph.instances for fqn in instance.parameters)
    items = []
    made: dict[tuple[int, int], tuple[Point, ...]] = {}
    for position, instance in enumerate(graph.instances):
        index = instance.block_class
        counts = local_counts(points[0], instance)
        tied = {fqn: count for fqn, count in counts.items() if uses[fqn] > 1}
        key = (index, sum(tied.values()))
        if key not in made:
            made[key] = tuple(
                _point(part.times[index], part.memories[index], key[1], settings) for part in parts
            )
        items.append(
            ChainItem(
                points=made[key],
                boundary=parts[0].memories[index].boundary_out,
                send=sends[position] if position < len(sends) else 0.0,
                tied=tuple(
                    (fqn, sum(state_bytes(count, count, settings))) for fqn, count in tied.items()
                ),
            )
        )
    return items


def _point(time: BlockTime, memory: BlockMemory, tied: int, settings: MemorySettings) -> Point:
    """A block with one choice; its ``tied`` parameters (elements) are counted by the stage."""
    held = state_bytes(memory.numel - tied, max(0, memory.trainable - tied), settings)
    return Point(
        forward=time.forward + time.tp_forward,
        backward=time.backward + time.tp_backward + time.again,
        static=sum(held),
        activation=memory.kept,
        transient=max(memory.forward, memory.working) + unit_bytes(memory.numel, settings),
    )
