"""The choice problem of a block: operators' strategies, storage and conversions as choices.

Nodes of the problem (see `problem`): each operator chooses a strategy and pays its compute
and inner collectives; each parameter chooses its storage and pays for its bytes; boundary
inputs, and one sink for each boundary output, have a single choice. A value's conversions
cost what the collectives of the placement algebra cost, forward and backward together.
A stored ``R`` used as ``R*`` pays the sum of its partial gradients once; a parameter is never
converted otherwise. Bytes that autograd keeps are stores, held by every operator that saves
them: the storage a tensor was made in (its own, or that of the tensor it views), whole or
sharded, or a converted copy. A view of a converted copy counts as one of the original, which
is the only way in which these bytes differ from `autoplan.costs.liveness`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autoplan.costs.compute import OpTime, local_bytes, local_extra
from autoplan.costs.experts import experts_products, local_experts
from autoplan.costs.resharding import Resharding
from autoplan.costs.terms import changed_time, op_term, required_states
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Op, Tensor, TensorKind
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.offers import offers
from autoplan.solver.problem import Node, NodeHolder, Problem, Store, Use, UseHolder, Value

__all__ = ["Formulation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One strategy: state required by each input slot, and seconds by direction."""

    strategy: OpStrategy
    states: tuple[Placement, ...]
    forward: float
    backward: float
    again: Mapping[Recompute, float]


@dataclass(frozen=True, slots=True)
class _Prices:
    """Priced strategies of each operator, and conversions as they are asked for."""

    choices: tuple[tuple[_Choice, ...], ...]
    conversions: dict[tuple[str, Placement, Placement], Resharding | None]


@by_identity(2048)
def _prices(block: BlockClass, group: Group, cluster: Cluster) -> _Prices:
    """Prices that do not depend on the question asked."""
    return _Prices(
        tuple(
            tuple(_price(op, block, strategy, time, group, cluster) for strategy, time in offered)
            for op, offered in zip(
                block.ops, offers(block, group.ranks, cluster.accelerator), strict=True
            )
        ),
        {},
    )


def _price(
    op: Op, block: BlockClass, strategy: OpStrategy, time: OpTime, group: Group, cluster: Cluster
) -> _Choice:
    term = op_term(op, block, strategy, group, cluster, time=time)
    return _Choice(
        strategy=strategy,
        states=required_states(op, block, strategy),
        forward=term.forward + term.tp_forward,
        backward=term.backward + term.tp_backward,
        again={
            Recompute.NONE: 0.0,
            Recompute.SELECTIVE: term.again + term.tp_again,
            Recompute.FULL: term.forward + term.tp_forward,
        },
    )


class Formulation:
    """The choice problem of a block, built node by node."""

    def __init__(
        self,
        *,
        block: BlockClass,
        group: Group,
        cluster: Cluster,
        recompute: Recompute,
    ) -> None:
        prices = _prices(block, group, cluster)
        self._block = block
        self._group = group
        self._cluster = cluster
        self._choices = prices.choices
        self._conversions = prices.conversions
        self._recompute = recompute
        self._nodes: list[Node] = []
        self._storages: dict[str, tuple[int, tuple[Placement, ...]]] = {}
        # By tensor: its producer with the placement each choice makes, and its readers.
        self._made: dict[str, tuple[int, tuple[Placement, ...]]] = {}
        self._read: dict[str, list[tuple[int, tuple[Placement, ...]]]] = {}
        self._last_use: dict[tuple[str, int], int] = {}
        self._codes: dict[str, dict[Placement, int]] = {}
        self._sent: dict[str, Placement] = {}

    def add_operators(self) -> None:
        """One node for each operator, one choice for each strategy."""
        for op, choices in zip(self._block.ops, self._choices, strict=True):
            costs = tuple(c.forward + c.backward + c.again[self._recompute] for c in choices)
            node = self._node(op.name, costs)
            for index, name in enumerate(op.outputs):
                self._made[name] = (node, tuple(c.strategy.outputs[index] for c in choices))
            for slot, name in enumerate(op.inputs):
                self._reads(name, node, tuple(c.states[slot] for c in choices))

    def add_parameters(self, fixed: Mapping[str, Placement]) -> None:
        """One node for each parameter, one choice for each storage that some reader takes."""
        for name in self._block.parameters:
            if name in fixed:
                options: tuple[Placement, ...] = (fixed[name],)
            else:
                wanted = [state for _, states in self._read.get(name, ()) for state in states]
                shards = dict.fromkeys(state for state in wanted if isinstance(state, Shard))
                options = (Replicate(), *shards)
            tensor = self._block.tensor(name)
            sizes = tuple(local_bytes(tensor, p, self._group.ranks) for p in options)
            node = self._node(name, (0.0,) * len(options), sizes)
            self._made[name] = (node, options)
            self._storages[name] = (node, options)

    def add_boundary(self, ins: Sequence[Placement], outs: Sequence[Placement]) -> None:
        """One-choice nodes: what the previous block hands over, and what the next one gets."""
        for name, placement in zip(self._block.inputs, ins, strict=True):
            self._made[name] = (self._node(name, (0.0,)), (placement,))
        for index, (name, placement) in enumerate(zip(self._block.outputs, outs, strict=True)):
            self._reads(name, self._node(f"output {index}", (0.0,)), (placement,))
            self._sent[self._block.tensor(name).base] = placement
        for name in (*self._block.buffers, *self._block.shared):
            self._made[name] = (self._node(name, (0.0,)), (Replicate(),))

    def problem(self, *, with_stores: bool, memory_limit: int | None) -> Problem:
        """The finished problem, with or without the bytes that it keeps for the backward."""
        names = [name for name in self._made if self._read.get(name)]
        values = tuple(self._value(name) for name in names)
        stores = self._stores(names) if with_stores else ()
        return Problem(tuple(self._nodes), values, stores, memory_limit)

    def strategies(self, choices: Sequence[int]) -> dict[str, OpStrategy]:
        """Strategy of each operator under an assignment."""
        return {
            op.name: options[pick].strategy
            for op, options, pick in zip(self._block.ops, self._choices, choices, strict=False)
        }

    def placements(self, choices: Sequence[int]) -> dict[str, tuple[Placement, bool]]:
        """Storage of each parameter, and whether its gradient is partial."""
        placements = {}
        for name, (node, options) in self._storages.items():
            partial = any(
                states[choices[reader]] == Replicate(True)
                for reader, states in self._read.get(name, ())
            )
            placements[name] = (options[choices[node]], partial)
        return placements

    def _node(self, name: str, costs: tuple[float, ...], stored: tuple[int, ...] = ()) -> int:
        self._nodes.append(Node(name, costs, stored))
        return len(self._nodes) - 1

    def _reads(self, name: str, node: int, states: tuple[Placement, ...]) -> None:
        uses = self._read.setdefault(name, [])
        self._last_use[name, node] = len(uses)
        uses.append((node, states))

    def _value(self, name: str) -> Value:
        producer, made = self._made[name]
        codes = self._codes.setdefault(name, {})
        uses = tuple(
            Use(node, tuple(codes.setdefault(state, len(codes)) for state in states))
            for node, states in self._read[name]
        )
        wanted = tuple(codes)
        produced = tuple(codes.setdefault(placement, len(codes)) for placement in made)
        tensor = self._block.tensor(name)
        conversions, summed = {}, {}
        for source in dict.fromkeys(made):
            for target in wanted:
                cost = self._conversion(tensor, source, target)
                if cost is None:
                    continue
                pair = codes[source], codes[target]
                conversions[pair] = cost
                if tensor.kind is TensorKind.PARAMETER and source != target:
                    summed[pair] = tensor.size
        return Value(producer, produced, uses, conversions, summed)

    def _conversion(self, tensor: Tensor, source: Placement, target: Placement) -> float | None:
        if tensor.kind is TensorKind.PARAMETER:
            is_legal = source == target or (target == Replicate(True) and source == Replicate())
            return 0.0 if is_legal else None
        key = (tensor.name, source, target)
        if key not in self._conversions:
            self._conversions[key] = changed_time(
                tensor.name, self._block, source, target, self._group, self._cluster
            )
        times = self._conversions[key]
        if times is None:
            return None
        # Selective recompute keeps what collectives give; a conversion without one is free.
        passes = 2 if self._recompute is Recompute.FULL else 1
        return passes * times.forward + times.backward

    def _stores(self, names: Sequence[str]) -> tuple[Store, ...]:
        """One store for each storage that may be kept, as `liveness` counts them."""
        if self._recompute is Recompute.SELECTIVE:
            return self._selected_stores(names)
        position = {name: index for index, name in enumerate(names)}
        holders: dict[_Storage, list[NodeHolder | UseHolder]] = {}
        for node, (op, choices) in enumerate(zip(self._block.ops, self._choices, strict=True)):
            for name in dict.fromkeys(op.saved):
                if name in op.outputs:
                    made = [c.strategy.outputs[op.outputs.index(name)] for c in choices]
                    for storage, picks in _grouped(map(self._own, [name] * len(made), made)):
                        holders.setdefault(storage, []).append(NodeHolder(node, picks))
                elif name in op.inputs:
                    use = self._last_use[name, node]
                    for storage, pairs in self._read_storages(name, use).items():
                        holder = UseHolder(position[name], use, frozenset(pairs))
                        holders.setdefault(storage, []).append(holder)
            if op.saved_extra:
                sizes = [
                    local_extra(op, self._block, c.strategy, self._group.ranks) for c in choices
                ]
                for size, picks in _grouped(sizes):
                    holders[op.name, "extra", size] = [NodeHolder(node, picks)]
        return _stores_of(holders)

    def _selected_stores(self, names: Sequence[str]) -> tuple[Store, ...]:
        """Stores of selective recompute: inputs, outputs of kept operators, received copies.

        What the block hands on is kept by those who receive it.
        """
        ranks = self._group.ranks
        holders: dict[_Storage, list[NodeHolder | UseHolder]] = {}
        for name in self._block.inputs:
            node, (placement,) = self._made[name]
            size = local_bytes(self._block.tensor(name), placement, ranks)
            holders[name, "", size] = [NodeHolder(node, frozenset({0}))]
        for node, (op, choices) in enumerate(zip(self._block.ops, self._choices, strict=True)):
            if not is_kept(op):
                continue
            if op.target == EXPERTS:
                regions = (local_experts(op, self._block, c.strategy, ranks) for c in choices)
                extras = [sum(experts_products(region)) for region in regions]
            else:
                extras = [local_extra(op, self._block, c.strategy, ranks) for c in choices]
                for index, name in enumerate(op.outputs):
                    sent = self._sent.get(self._block.tensor(name).base)
                    made = [c.strategy.outputs[index] for c in choices]
                    kept = [sent is None or self._is_copied(placement, sent) for placement in made]
                    for storage, picks in _grouped(map(self._own, [name] * len(made), made)):
                        held = frozenset(pick for pick in picks if kept[pick])
                        if held:
                            holders.setdefault(storage, []).append(NodeHolder(node, held))
            for size, picks in _grouped(extras):
                holders[op.name, "extra", size] = [NodeHolder(node, picks)]
        for position, name in enumerate(names):
            tensor = self._block.tensor(name)
            if tensor.kind is TensorKind.PARAMETER:
                continue
            for use in range(len(self._read[name])):
                for storage, pairs in self._copies(tensor, use).items():
                    holder = UseHolder(position, use, frozenset(pairs))
                    holders.setdefault(storage, []).append(holder)
        return _stores_of(holders)

    def _copies(self, tensor: Tensor, use: int) -> dict[_Storage, list[tuple[int, int]]]:
        """Pairs of states of a use that take a collective, by the copy that it makes."""
        codes = self._codes[tensor.name]
        copies: dict[_Storage, list[tuple[int, int]]] = {}
        sent = self._sent.get(tensor.name)
        for made in dict.fromkeys(self._made[tensor.name][1]):
            for wanted in dict.fromkeys(self._read[tensor.name][use][1]):
                times = self._conversions.get((tensor.name, made, wanted))
                received = times is not None and times.forward_kind is not None
                if not received or wanted == sent or not self._is_copied(made, wanted):
                    continue
                size = local_bytes(tensor, wanted, self._group.ranks)
                storage = (tensor.name, str(wanted), size)
                copies.setdefault(storage, []).append((codes[made], codes[wanted]))
        return copies

    def _read_storages(self, name: str, use: int) -> dict[_Storage, list[tuple[int, int]]]:
        """Pairs of states of a use by the storage in which it sees the tensor."""
        codes = self._codes[name]
        storages: dict[_Storage, list[tuple[int, int]]] = {}
        for made in dict.fromkeys(self._made[name][1]):
            for wanted in dict.fromkeys(self._read[name][use][1]):
                storage = self._own(name, made)
                if self._is_copied(made, wanted):
                    tensor = self._block.tensor(name)
                    storage = (name, str(wanted), local_bytes(tensor, wanted, self._group.ranks))
                storages.setdefault(storage, []).append((codes[made], codes[wanted]))
        return storages

    def _is_copied(self, made: Placement, wanted: Placement) -> bool:
        return self._group.ranks > 1 and not _shares(made, wanted)

    def _own(self, name: str, placement: Placement) -> _Storage:
        """Storage a tensor was made in: that of the tensor it views."""
        tensor = self._block.tensor(name)
        base = self._block.tensor(tensor.base)
        size = 0 if base.kind in _HELD_ELSEWHERE else base.size
        if not isinstance(placement, Shard):
            return base.name, "", size
        if placement.pad:
            whole = tensor.shape[placement.dim]
            return base.name, "padded", size * -(-whole // self._group.ranks) // whole
        return base.name, "sharded", size // self._group.ranks


def _stores_of(holders: Mapping[_Storage, list[NodeHolder | UseHolder]]) -> tuple[Store, ...]:
    return tuple(Store(size, tuple(needing)) for (_, _, size), needing in holders.items() if size)


_Storage = tuple[str, str, int]
"""Tensor, state and bytes."""

_HELD_ELSEWHERE = (
    TensorKind.PARAMETER,
    TensorKind.BUFFER,
    TensorKind.SHARED,
    TensorKind.INPUT,
)

_K = TypeVar("_K", bound=Hashable)


def _grouped(keys: Iterable[_K]) -> list[tuple[_K, frozenset[int]]]:
    """Positions of each distinct key."""
    groups: dict[_K, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return [(key, frozenset(indices)) for key, indices in groups.items()]


def _shares(made: Placement, wanted: Placement) -> bool:
    """Whether a required state lives in the storage it is made from: equal, or a plain slice."""
    if made == wanted:
        return True
    copied = isinstance(wanted, Shard) and (wanted.blocks > 1 or wanted.pad)
    return isinstance(made, Replicate) and not copied
