"""Bytes a block keeps from forward to backward, and the peak of what it holds for a moment.

A *storage* is a run of memory: the tensor that owns it, or a converted copy of a tensor.
Views, replicated states and slices of the outermost kind share the storage of their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.costs.compute import is_view, local_bytes, local_extra
from autoplan.costs.expert_steps import expert_steps
from autoplan.costs.experts import local_experts
from autoplan.costs.passes import Held, Step, Storage, Walk
from autoplan.costs.terms import produced_placements, required_states
from autoplan.costs.workspace import FUSED_LOSSES, is_class_shard, workspace
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Op, TensorKind
from autoplan.ir.hardware import HostConvolutions
from autoplan.ir.placement import Placement, Replicate, Shard, conversion
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.ir.strategy import OpStrategy

__all__ = ["Liveness", "liveness"]

_HELD_ELSEWHERE = (
    TensorKind.PARAMETER,
    TensorKind.BUFFER,
    TensorKind.INPUT,
    TensorKind.SHARED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """Bytes on one rank: kept from forward to backward, and the peaks of both passes.

    ``levels`` has what each recompute level keeps, and what it holds besides. ``inputs`` and
    ``outputs`` are bytes of each tensor that enters or leaves, and ``passed`` says for each
    output which input it is (-1: none).
    """

    levels: tuple[Held, Held, Held]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    read: tuple[bool, ...]
    passed: tuple[int, ...]
    saves: bool

    def at(self, level: Recompute) -> Held:
        """What a recompute level holds."""
        return self.levels[tuple(Recompute).index(level)]


class _Storages:
    """Storages of a block by tensor and state, with their local bytes."""

    def __init__(self, block: BlockClass, produced: Mapping[str, Placement], ranks: int) -> None:
        self.size: dict[Storage, int] = {}
        self.source: dict[Storage, Storage] = {}
        self.received: set[Storage] = set()  # copies that a collective made
        self._block = block
        self._produced = produced
        self._ranks = ranks
        self._of: dict[str, Storage] = {}
        for name in (*block.inputs, *block.parameters, *block.buffers, *block.shared):
            held = block.tensor(name).kind in _HELD_ELSEWHERE
            self.create(name, 0 if held else self._local(name, produced[name]))

    def _local(self, name: str, placement: Placement) -> int:
        return local_bytes(self._block.tensor(name), placement, self._ranks)

    def create(self, name: str, size: int | None = None) -> Storage:
        """A storage of its own for a produced tensor."""
        key = (name, "")
        self.size[key] = self._local(name, self._produced[name]) if size is None else size
        self._of[name] = key
        return key

    def alias(self, name: str, storage: Storage) -> None:
        """Let a tensor share a storage."""
        self._of[name] = storage

    def read(self, name: str, state: Placement) -> Storage:
        """Storage of a tensor in a required state: its own, or that of the converted copy."""
        produced = self._produced[name]
        if _shares(produced, state) or self._ranks == 1:
            return self._of[name]
        key = (name, str(state))
        self.size[key] = self._local(name, state)
        self.source[key] = self._of[name]
        differentiable = self._block.tensor(name).requires_grad
        pair = conversion(produced, state, differentiable=differentiable)
        if pair is not None and pair.forward is not None:
            self.received.add(key)
        return key

    def own(self, name: str) -> Storage:
        """Storage a tensor was produced in."""
        return self._of[name]


def _shares(produced: Placement, state: Placement) -> bool:
    if produced == state:
        return True
    # A slice of one run is a view; of several blocks or with padding, a copy.
    copied = isinstance(state, Shard) and (state.blocks > 1 or state.pad)
    return isinstance(produced, Replicate) and not copied


def liveness(
    block: BlockClass,
    strategies: Mapping[str, OpStrategy],
    boundary_in: tuple[Placement, ...],
    boundary_out: tuple[Placement, ...],
    ranks: int,
    convolutions: HostConvolutions | None = None,
) -> Liveness:
    """Kept bytes and transient peaks of one microbatch on one rank.

    ``convolutions`` is that of the `Accelerator`.
    """
    produced = produced_placements(block, strategies, boundary_in)
    storages = _Storages(block, produced, ranks)
    weights = _weights(block, produced, ranks)
    steps: list[Step] = []
    products = {storages.own(name) for name in block.inputs}
    for op in block.ops:
        strategy = strategies[op.name]
        states = required_states(op, block, strategy)
        reads = tuple(
            storages.read(name, state) for name, state in zip(op.inputs, states, strict=True)
        )
        by_name = dict(zip(op.inputs, reads, strict=True))
        writes = _outputs(op, block, storages, by_name)
        by_name.update(zip(op.outputs, writes, strict=True))
        if op.target == EXPERTS:
            region = local_experts(op, block, strategy, ranks)
            inside = expert_steps(op, block, region, by_name, storages.size)
            steps += inside
            products.update((inside[0].writes[0], inside[2].writes[0]))
            continue
        saved = {by_name[name] for name in op.saved if name in by_name}
        extra = local_extra(op, block, strategy, ranks)
        kept_extra = extra if is_kept(op) else 0
        if op.target in FUSED_LOSSES and is_class_shard(strategy):
            # The runtime's loss keeps the scores themselves, not their logarithms.
            saved.add(reads[0])
            extra = 0
        inside_forward, inside_backward = workspace(op, block, strategy, ranks, convolutions)
        if is_kept(op):
            products.update(writes)
        learns = any(block.tensor(name).requires_grad for name in op.outputs)
        steps.append(
            Step(
                reads=reads,
                writes=writes,
                saved=frozenset(saved),
                extra=extra,
                kept_extra=kept_extra,
                forward=inside_forward,
                backward=inside_backward,
                gradients=_gradients(op, block, reads, writes) if learns else (),
                weights=tuple(name for name in op.inputs if name in weights),
            )
        )
    sent = tuple(
        storages.read(name, state) for name, state in zip(block.outputs, boundary_out, strict=True)
    )
    entered = tuple(storages.own(name) for name in block.inputs)
    walk = Walk(
        steps=tuple(steps),
        size=storages.size,
        source=storages.source,
        entered=entered,
        sent=sent,
        products=frozenset({*products, *storages.received}),
        weights=weights,
        saves=bool(block.parameters) or any(step.saved or step.extra for step in steps),
    )
    return Liveness(
        levels=walk.levels(),
        inputs=tuple(storages.size[key] for key in entered),
        outputs=tuple(storages.size[key] for key in sent),
        read=tuple(any(key in step.reads for step in steps) for key in entered),
        passed=tuple(entered.index(key) if key in entered else -1 for key in sent),
        saves=walk.saves,
    )


def _gradients(
    op: Op, block: BlockClass, reads: tuple[Storage, ...], writes: tuple[Storage, ...]
) -> tuple[Storage, ...]:
    """Storages whose gradients exist while the operator's backward runs."""
    read = (
        key for name, key in zip(op.inputs, reads, strict=True) if block.tensor(name).requires_grad
    )
    return (*writes, *read)


def _weights(block: BlockClass, produced: Mapping[str, Placement], ranks: int) -> dict[str, int]:
    """Local bytes of the gradient of each trainable parameter."""
    return {
        name: local_bytes(block.tensor(name), produced[name], ranks)
        for name in block.parameters
        if block.tensor(name).requires_grad
    }


def _outputs(
    op: Op, block: BlockClass, storages: _Storages, reads: Mapping[str, Storage]
) -> tuple[Storage, ...]:
    written = []
    source = next((s for n, s in reads.items() if not _is_constant(block, n)), None)
    for name in op.outputs:
        if is_view(op, block) and reads:
            base = block.tensor(name).base
            origin = next(
                (s for n, s in reads.items() if n == base or block.tensor(n).base == base), source
            )
            if origin is not None:
                storages.alias(name, origin)
                written.append(origin)
                continue
        written.append(storages.create(name))
    return tuple(written)


def _is_constant(block: BlockClass, name: str) -> bool:
    return block.tensor(name).kind in _HELD_ELSEWHERE
