"""Bytes a block keeps from forward to backward, and the peak of what it holds for a moment.

A *storage* is a run of memory: the tensor that owns it, or a converted copy of a tensor.
Views, replicated states and slices of the outermost kind share the storage of their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.costs.compute import is_view, local_bytes, local_extra
from autoplan.costs.experts import experts_products, experts_workspace, local_experts
from autoplan.costs.terms import produced_placements, required_states
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Op, TensorKind, dtype_size
from autoplan.ir.placement import Placement, Replicate, Shard, conversion
from autoplan.ir.recompute import is_kept
from autoplan.ir.strategy import OpStrategy

__all__ = ["Liveness", "liveness"]

Storage = tuple[str, str]
_FUSED_LOSSES = ("aten.cross_entropy_loss.default",)
_HELD_ELSEWHERE = (
    TensorKind.PARAMETER,
    TensorKind.BUFFER,
    TensorKind.INPUT,
    TensorKind.SHARED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """Bytes on one rank: saved for backward, and the transient peaks of both passes.

    ``selected`` is what selective recompute keeps instead of ``saved``, and ``remade`` the
    part of ``saved`` that it makes again in backward.
    ``fresh`` is the peak of a backward whose parameters have no gradient before it: these stay
    from their operator to the end; in ``backward`` each is added to one that exists. The rest
    says what is kept of the tensors at the ends: bytes of each input and whether it is saved,
    and for each output whether it is saved and which input it is (-1: none).
    """

    saved: int
    selected: int
    remade: int
    forward: int
    backward: int
    fresh: int
    inputs: tuple[int, ...]
    saved_inputs: tuple[bool, ...]
    saved_outputs: tuple[bool, ...]
    passed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    op: Op
    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]
    forward: int = 0  # bytes held for a moment inside the operator
    backward: int = 0


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
) -> Liveness:
    """Saved bytes and transient peaks of one microbatch on one rank."""
    produced = produced_placements(block, strategies, boundary_in)
    storages = _Storages(block, produced, ranks)
    steps: list[_Step] = []
    saved: set[Storage] = set()
    selected = {storages.own(name) for name in block.inputs}
    extra = extra_selected = extra_remade = 0
    for op in block.ops:
        strategy = strategies[op.name]
        states = required_states(op, block, strategy)
        reads = tuple(
            storages.read(name, state) for name, state in zip(op.inputs, states, strict=True)
        )
        writes = _outputs(op, block, storages, dict(zip(op.inputs, reads, strict=True)))
        by_name = dict(zip(op.inputs, reads, strict=True))
        by_name.update(zip(op.outputs, writes, strict=True))
        saved.update(by_name[name] for name in op.saved if name in by_name)
        held = local_extra(op, block, strategy, ranks)
        inside = (0, 0)
        if op.target in _FUSED_LOSSES:
            if _class_shard(strategy):
                # The runtime's loss keeps the scores themselves, not their logarithms.
                saved.add(reads[0])
                held, inside = 0, _class_shard_workspace(storages.size[reads[0]], op, block)
            else:
                # The scores' logarithms (kept) have a gradient beside that of the scores.
                inside = (0, storages.size[reads[0]])
        extra += held
        if op.target == EXPERTS:
            region = local_experts(op, block, strategy, ranks)
            inside = experts_workspace(region)
            first, last = experts_products(region)
            extra_selected += first + last
            extra_remade += max(0, held - first)
        elif is_kept(op):
            selected.update(writes)
            extra_selected += held
        else:
            extra_remade += held
        steps.append(_Step(op, reads, writes, *inside))
    sent = tuple(
        storages.read(name, state) for name, state in zip(block.outputs, boundary_out, strict=True)
    )
    weights = _weights(block, produced, ranks)
    entered = [storages.own(name) for name in block.inputs]
    # What the block hands on is kept by those who receive it.
    handed_on = {*sent} - {storages.own(name) for name in block.inputs}
    selected = {*selected, *storages.received} - handed_on
    remade = saved - selected
    return Liveness(
        saved=sum(storages.size[key] for key in saved) + extra,
        selected=sum(storages.size[key] for key in selected) + extra_selected,
        remade=sum(storages.size[key] for key in remade) + extra_remade,
        forward=_forward_peak(steps, storages.size, saved, sent),
        backward=_backward_peak(steps, storages, block, sent, weights, stay=False),
        fresh=_backward_peak(steps, storages, block, sent, weights, stay=True),
        inputs=tuple(storages.size[key] for key in entered),
        saved_inputs=tuple(key in saved for key in entered),
        saved_outputs=tuple(key in saved for key in sent),
        passed=tuple(entered.index(key) if key in entered else -1 for key in sent),
    )


def _class_shard(strategy: OpStrategy) -> bool:
    return isinstance(strategy.inputs[0], Shard) and strategy.inputs[0].dim == 1


def _class_shard_workspace(scores: int, op: Op, block: BlockClass) -> tuple[int, int]:
    """Bytes inside the loss of ``scores`` bytes by classes: float32 copies, in both passes.

    Forward shifts the scores; backward's one copy becomes the gradient. Other scores than
    float32 are converted first, and that copy exists beside the other.
    """
    itemsize = dtype_size(block.tensor(op.inputs[0]).dtype)
    if itemsize >= 4:
        return scores, 0
    wide = scores * 4 // itemsize
    return 2 * wide, 2 * wide - scores


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


def _forward_peak(
    steps: list[_Step],
    size: Mapping[Storage, int],
    saved: set[Storage],
    sent: tuple[Storage, ...],
) -> int:
    """Largest sum of storages that live during an operator and are not kept afterwards."""
    last: dict[Storage, int] = {}
    for index, step in enumerate(steps):
        for key in (*step.reads, *step.writes):
            last[key] = index
    for key in sent:
        last[key] = len(steps)
    live: set[Storage] = set()
    peak = 0
    for index, step in enumerate(steps):
        live.update(key for key in (*step.reads, *step.writes) if key not in saved)
        peak = max(peak, sum(size[key] for key in live) + step.forward)
        live = {key for key in live if last[key] > index}
    return max(peak, sum(size[key] for key in {*live, *sent} if key not in saved))


def _backward_peak(
    steps: list[_Step],
    storages: _Storages,
    block: BlockClass,
    sent: tuple[Storage, ...],
    weights: Mapping[str, int],
    *,
    stay: bool,
) -> int:
    """Largest sum of gradients that live at once: each as large as its tensor's storage.

    Going backwards, the gradient of a storage lives from its first reader to its producer.
    That of a converted copy ends where the copy was first read: there it becomes one of the
    source. Those of parameters ``stay``, or are added to what exists.
    """
    size, source = storages.size, storages.source
    begin: dict[Storage, int] = {}
    for index, step in enumerate(steps):
        for key in step.writes:
            begin.setdefault(key, index)
        for key in step.reads:
            if key in source:
                begin.setdefault(key, index)
    live = {*sent, *(source[key] for key in sent if key in source)}
    peak = sum(size[key] for key in live)
    live -= {key for key in sent if key in source and key not in begin}
    learnt: set[str] = set()
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if any(block.tensor(name).requires_grad for name in step.op.outputs):
            live.update(step.writes)
            live.update(
                key
                for name, key in zip(step.op.inputs, step.reads, strict=True)
                if block.tensor(name).requires_grad
            )
        done = {key for key in live if begin.get(key, -1) >= index}
        live.update(source[key] for key in done if key in source)
        used = {name for name in step.op.inputs if name in weights}
        learnt = learnt | used if stay else used
        gradients = sum(weights[name] for name in learnt)
        peak = max(peak, sum(size[key] for key in live) + gradients + step.backward)
        live -= done
    return peak
