"""What the tensor-parallel axis does in one block, in words and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.placement import (
    CollectiveKind,
    Conversion,
    Placement,
    Replicate,
    Shard,
    conversion,
    padded_shape,
    parse_placement,
    required_state,
)
from autoplan.ir.plan import Plan
from autoplan.ir.record import graph_from_record, strategies_from_record
from autoplan.ir.strategy import OpStrategy
from autoplan.ir.variants import class_families

__all__ = ["BlockSharding", "block_shardings", "padded_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSharding:
    """Blocks of one kind that are sharded alike.

    ``sharded`` holds (name within the block, placement) of its sharded parameters;
    ``replicated`` counts the others, ``partial`` those of them whose gradient each rank knows
    only in part, so that it is summed over tp once a step. ``forward`` and ``backward`` count
    the collectives of one microbatch by kind.
    """

    name: str
    copies: int
    sharded: tuple[tuple[str, str], ...]
    replicated: int
    partial: int
    forward: dict[str, int]
    backward: dict[str, int]


def block_shardings(plan: Plan) -> tuple[BlockSharding, ...]:
    """Ways in which copies of the block with the most of them are sharded; none when tp is 1."""
    if plan.mesh.tp == 1 or not plan.graph.instances:
        return ()
    graph = graph_from_record(plan.graph)
    families = class_families(graph)
    copies = Counter(families[instance.block_class] for instance in graph.instances)
    most = max(copies, key=lambda item: (copies[item], len(graph.classes[item].ops), -item))
    groups: list[list[int]] = []  # classes whose blocks differ in recompute at most
    for index in dict.fromkeys(instance.block_class for instance in graph.instances):
        if families[index] != most:
            continue
        for group in groups:
            if _alike(plan, group[0], index):
                group.append(index)
                break
        else:
            groups.append([index])
    return tuple(_sharding(plan, graph, group) for group in groups)


def _alike(plan: Plan, one: int, other: int) -> bool:
    """Whether the blocks of two classes are sharded alike."""
    first, second = plan.graph.classes[one], plan.graph.classes[other]
    same = {"name": first.name, "recompute": first.recompute}
    return second.model_copy(update=same) == first and _storage(plan, one) == _storage(plan, other)


def _storage(plan: Plan, index: int) -> list[tuple[str, bool]]:
    stored = {p.fqn: (p.placement, p.partial_grad) for p in plan.graph.parameters}
    instance = next(i for i in plan.graph.instances if i.block_class == index)
    return [stored[fqn] for fqn in instance.parameters]


def _sharding(plan: Plan, graph: Graph, group: list[int]) -> BlockSharding:
    """Sharding of blocks that are alike, as classes of the graph."""
    index = group[0]
    alike = [i for i in graph.instances if i.block_class in group]
    instance = alike[0]
    storage = {p.fqn: p.placement for p in plan.graph.parameters}
    partial = {p.fqn for p in plan.graph.parameters if p.partial_grad}
    prefix = _common_prefix(instance.parameters)
    placed = [(fqn.removeprefix(prefix), storage[fqn]) for fqn in instance.parameters]
    record = plan.graph.classes[index]
    produced: dict[str, Placement] = {
        name: parse_placement(text)
        for name, text in zip(record.inputs, record.boundary_in, strict=False)
    }
    ends: dict[str, Placement] = {
        name: parse_placement(text)
        for name, text in zip(record.outputs, record.boundary_out, strict=False)
    }
    forward, backward = _collectives(
        graph.classes[index], strategies_from_record(plan.graph)[index], produced, ends
    )
    return BlockSharding(
        name=instance.name,
        copies=len(alike),
        sharded=tuple((name, text) for name, text in placed if text != "R"),
        replicated=sum(text == "R" for _, text in placed),
        partial=sum(fqn in partial for fqn in instance.parameters),
        forward=forward,
        backward=backward,
    )


def padded_parameters(plan: Plan) -> tuple[tuple[str, int, int, int], ...]:
    """Padded parameters: FQN, dim, size of the dim, and its size with the padding."""
    found = []
    for parameter in plan.graph.parameters:
        placement = parse_placement(parameter.placement)
        if isinstance(placement, Shard) and placement.pad:
            dim = placement.dim
            whole = padded_shape(tuple(parameter.shape), placement, plan.mesh.tp)
            found.append((parameter.fqn, dim, parameter.shape[dim], whole[dim]))
    return tuple(found)


def _collectives(
    block: BlockClass,
    strategies: dict[str, OpStrategy],
    produced: dict[str, Placement],
    ends: dict[str, Placement],
) -> tuple[dict[str, int], dict[str, int]]:
    """Collectives by kind of one forward and one backward pass.

    A converted copy is made once for each (tensor, required state). Parameters are never
    converted: a partial gradient of one is summed once a step, not here.
    """
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    copies: dict[tuple[str, Placement], Conversion] = {}
    parameters = set(block.parameters)

    def require(name: str, state: Placement, differentiable: bool) -> None:
        source = produced.get(name, Replicate())
        pair = conversion(source, state, differentiable=differentiable)
        if pair is not None and name not in parameters:
            copies[name, state] = pair

    for op in block.ops:
        strategy = strategies.get(op.name)
        if strategy is None:
            continue
        for name, placement in zip(op.inputs, strategy.inputs, strict=True):
            grad = block.tensor(name).requires_grad
            state = required_state(placement, strategy.outputs, differentiable=grad)
            require(name, state, grad)
        for inner in strategy.inner:
            (backward if inner.backward else forward)[inner.kind.value] += 1
        produced = {**produced, **dict(zip(op.outputs, strategy.outputs, strict=True))}
    for name, state in ends.items():
        require(name, state, True)
    for pair in copies.values():
        _count(forward, pair.forward)
        _count(backward, pair.backward)
    return dict(sorted(forward.items())), dict(sorted(backward.items()))


def _count(counter: Counter[str], kind: CollectiveKind | None) -> None:
    if kind is not None:
        counter[kind.value] += 1


def _common_prefix(fqns: tuple[str, ...]) -> str:
    """Module path shared by all names, with its dot."""
    if len(fqns) < 2:
        return ""
    parts = [fqn.split(".")[:-1] for fqn in fqns]
    shared: list[str] = []
    for items in zip(*parts, strict=False):
        if len(set(items)) > 1:
            break
        shared.append(items[0])
    return ".".join(shared) + "." if shared else ""
