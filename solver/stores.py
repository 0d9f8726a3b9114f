"""Bytes that a block keeps for its backward, as stores of its choice problem.

They are held by every operator that saves them: the storage a tensor was made in (its own, or
that of the tensor it views), whole or sharded, or a converted copy. A view of a converted copy
counts as one of the original, which is the only way in which these bytes differ from
`autoplan.costs.liveness`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from autoplan.costs.compute import local_bytes, local_extra
from autoplan.costs.experts import experts_products, local_experts
from autoplan.costs.workspace import FUSED_LOSSES
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import Op, TensorKind
from autoplan.ir.placement import Placement
from autoplan.ir.recompute import is_kept
from autoplan.solver.choices import BlockChoices, Choice
from autoplan.solver.problem import NodeHolder, Store, UseHolder
from autoplan.solver.wires import Ends, Storage, Wire, made_storage

__all__ = ["saved_stores", "selected_stores"]

_Holders = dict[Storage, list[NodeHolder | UseHolder]]

_OTHERWISE = (*FUSED_LOSSES, EXPERTS)
"""Operators of which the runtime may keep other tensors than autograd would."""


def saved_stores(
    choices: BlockChoices, wires: Mapping[str, Wire], *, sent: Collection[str] | None = None
) -> tuple[Store, ...]:
    """One store for each storage that autograd may save.

    With ``sent``, the tensors that the block hands on, what it surely keeps besides those.
    """
    position = {name: index for index, name in enumerate(wires)}
    holders: _Holders = {}
    for node, (op, options) in enumerate(zip(choices.block.ops, choices.of, strict=True)):
        if sent is not None and op.target in _OTHERWISE:
            continue
        for name in dict.fromkeys(op.saved):
            if sent is not None and choices.block.tensor(name).base in sent:
                continue
            if name in op.outputs:
                for storage, picks in _made(choices, options, op, op.outputs.index(name)):
                    holders.setdefault(storage, []).append(NodeHolder(node, picks))
            elif name in op.inputs:
                wire = wires[name]
                use = max(i for i, (reader, _) in enumerate(wire.readers) if reader == node)
                for storage, pairs in wire.read_storages(use).items():
                    holder = UseHolder(position[name], use, frozenset(pairs))
                    holders.setdefault(storage, []).append(holder)
        if op.saved_extra:
            sizes = [local_extra(op, choices.block, c.strategy, choices.ranks) for c in options]
            for size, picks in _grouped(sizes):
                holders[op.name, "extra", size] = [NodeHolder(node, picks)]
    return _stores_of(holders) if sent is None else _sure_stores(choices, holders)


def selected_stores(
    choices: BlockChoices,
    wires: Mapping[str, Wire],
    given: Mapping[str, Ends],
    sent: Mapping[str, Placement],
    *,
    least: bool = False,
) -> tuple[Store, ...]:
    """Stores of selective recompute: inputs, outputs of kept operators, received copies.

    ``given`` has the node and placement of each input. What the block hands on (``sent``: in
    which placement, by tensor) is kept by those who receive it. With ``least``, what is surely
    kept.
    """
    block, ranks = choices.block, choices.ranks
    holders: _Holders = {}
    for name, (node, (placement,)) in given.items():
        size = local_bytes(block.tensor(name), placement, ranks)
        holders[name, "", size] = [NodeHolder(node, frozenset({0}))]
    for node, (op, options) in enumerate(zip(block.ops, choices.of, strict=True)):
        if not is_kept(op) or (least and op.target in _OTHERWISE):
            continue
        if op.target == EXPERTS:
            regions = (local_experts(op, block, c.strategy, ranks) for c in options)
            extras = [sum(experts_products(region)) for region in regions]
        else:
            extras = [local_extra(op, block, c.strategy, ranks) for c in options]
            for index, name in enumerate(op.outputs):
                handed = sent.get(block.tensor(name).base)
                for storage, picks in _made(choices, options, op, index):
                    held = frozenset(
                        pick
                        for pick in picks
                        if handed is None
                        or choices.is_copied(options[pick].strategy.outputs[index], handed)
                    )
                    if held:
                        holders.setdefault(storage, []).append(NodeHolder(node, held))
        for size, picks in _grouped(extras):
            holders[op.name, "extra", size] = [NodeHolder(node, picks)]
    for position, (name, wire) in enumerate(wires.items()):
        if wire.tensor.kind is TensorKind.PARAMETER:
            continue
        for use in range(len(wire.readers)):
            for storage, pairs in wire.received(use, sent.get(name)).items():
                holder = UseHolder(position, use, frozenset(pairs))
                holders.setdefault(storage, []).append(holder)
    return _sure_stores(choices, holders) if least else _stores_of(holders)


def _made(
    choices: BlockChoices, options: Sequence[Choice], op: Op, index: int
) -> list[tuple[Storage, frozenset[int]]]:
    """Choices of an operator by the storage in which they make an output."""
    tensor = choices.block.tensor(op.outputs[index])
    made = [c.strategy.outputs[index] for c in options]
    storage = {placement: made_storage(choices, tensor, placement) for placement in set(made)}
    return _grouped(storage[placement] for placement in made)


def _stores_of(holders: Mapping[Storage, list[NodeHolder | UseHolder]]) -> tuple[Store, ...]:
    return tuple(Store(size, tuple(needing)) for (_, _, size), needing in holders.items() if size)


def _sure_stores(choices: BlockChoices, holders: _Holders) -> tuple[Store, ...]:
    """Stores whose bytes no assignment holds fewer of.

    Of a tensor, its views and their copies only the largest that is held counts: a view of a
    copy may have that copy's storage. So the larger sizes add what they have beyond the smaller.
    """
    groups: dict[tuple[str, str], dict[int, list[NodeHolder | UseHolder]]] = {}
    for (name, state, size), needing in holders.items():
        extra = state == "extra"
        key = ("extra", name) if extra else ("", choices.block.tensor(name).base)
        groups.setdefault(key, {}).setdefault(size, []).extend(needing)
    stores = []
    for sizes in groups.values():
        below = 0
        for size in sorted(sizes):
            needing = [one for larger, some in sizes.items() if larger >= size for one in some]
            if size > below:
                stores.append(Store(size - below, tuple(needing)))
            below = size
    return tuple(stores)


_K = TypeVar("_K", bound=Hashable)


def _grouped(keys: Iterable[_K]) -> list[tuple[_K, frozenset[int]]]:
    """Positions of each distinct key."""
    groups: dict[_K, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return [(key, frozenset(indices)) for key, indices in groups.items()]
