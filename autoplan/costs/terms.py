"""Every cost term of a block, priced once for the closed form and for the integer program.

Two kinds of terms: an operator under a strategy, and a tensor converted from its produced
placement to a required state (once, however many consumers require it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoplan.costs.collectives import collective_time
from autoplan.costs.compute import OpTime, again_time, local_bytes, memory_time, op_time
from autoplan.costs.fusion import fusion
from autoplan.costs.resharding import Resharding, conversion_time
from autoplan.errors import InternalError
from autoplan.ir.graph import BlockClass, Op, TensorKind
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement, Replicate, Shard, required_state
from autoplan.ir.recompute import is_kept
from autoplan.ir.strategy import OpStrategy

__all__ = [
    "BlockTerms",
    "ConversionTerm",
    "OpTerm",
    "block_terms",
    "changed_time",
    "op_term",
    "parameter_states",
    "produced_placements",
    "required_states",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTerm:
    """Seconds of one operator under one strategy: compute, and its inner collectives.

    ``again`` and ``tp_again`` are those of the forward that selective recompute pays again.
    """

    forward: float
    backward: float
    tp_forward: float
    tp_backward: float
    again: float
    tp_again: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionTerm:
    """One converted copy of a tensor."""

    tensor: str
    produced: Placement
    required: Placement
    resharding: Resharding


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTerms:
    """All terms of a block: operators in order, then conversions in order of first use."""

    ops: tuple[OpTerm, ...]
    conversions: tuple[ConversionTerm, ...]


def op_term(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    group: Group,
    cluster: Cluster,
    *,
    time: OpTime | None = None,
) -> OpTerm:
    """Seconds of an operator under a strategy; ``time`` is that of `op_time` where it is known."""
    if time is None:
        time = op_time(op, block, strategy, group.ranks, cluster.accelerator)
    inner = {False: 0.0, True: 0.0}
    copies = 0.0  # of the forward: what was received is kept, not what it is joined to
    for collective in strategy.inner:
        copied = memory_time(collective.copied, cluster.accelerator)
        inner[collective.backward] += copied + collective_time(
            collective.kind, collective.payload, group, cluster
        )
        copies += 0.0 if collective.backward else copied
    return OpTerm(
        forward=time.forward,
        backward=time.backward,
        tp_forward=inner[False],
        tp_backward=inner[True],
        again=again_time(op, block, strategy, group.ranks, cluster.accelerator, time.forward),
        tp_again=copies if is_kept(op) else inner[False],
    )


def required_states(op: Op, block: BlockClass, strategy: OpStrategy) -> tuple[Placement, ...]:
    """State each input slot must be in, by the gradient law."""
    return tuple(
        required_state(placement, strategy.outputs, differentiable=block.tensor(name).requires_grad)
        for name, placement in zip(op.inputs, strategy.inputs, strict=True)
    )


def produced_placements(
    block: BlockClass,
    strategies: Mapping[str, OpStrategy],
    boundary_in: tuple[Placement, ...],
) -> dict[str, Placement]:
    """Placement in which each tensor of a block comes into being.

    Parameters are stored as their consumers need them; see `parameter_states`.
    """
    produced: dict[str, Placement] = {name: Replicate() for name in (*block.buffers, *block.shared)}
    produced.update(zip(block.inputs, boundary_in, strict=True))
    for name, (storage, _) in parameter_states(block, strategies).items():
        produced[name] = storage
    for op in block.ops:
        produced.update(zip(op.outputs, strategies[op.name].outputs, strict=True))
    return produced


def parameter_states(
    block: BlockClass, strategies: Mapping[str, OpStrategy]
) -> dict[str, tuple[Placement, bool]]:
    """Storage placement of each parameter, and whether some use leaves a partial gradient."""
    storage: dict[str, Placement] = {}
    partial: dict[str, bool] = dict.fromkeys(block.parameters, False)
    for op in block.ops:
        for name, state in zip(
            op.inputs, required_states(op, block, strategies[op.name]), strict=True
        ):
            if name not in partial:
                continue
            stored = state if isinstance(state, Shard) else Replicate()
            if storage.setdefault(name, stored) != stored:
                raise InternalError(
                    f"{block.name}: parameter {name} is used as {storage[name]} and as {state}"
                )
            partial[name] |= isinstance(state, Replicate) and state.partial_grad
    return {name: (storage.get(name, Replicate()), flag) for name, flag in partial.items()}


def changed_time(
    name: str,
    block: BlockClass,
    produced: Placement,
    required: Placement,
    group: Group,
    cluster: Cluster,
) -> Resharding | None:
    """Seconds of a conversion between operators of a block; ``None`` when it is illegal.

    Within a fused kernel a change of a tensor's local shape, or a collective, cuts it in two:
    the tensor is written and read (its gradient in backward), by one more kernel.
    """
    tensor = block.tensor(name)
    found = conversion_time(tensor, produced, required, group, cluster)
    accelerator = cluster.accelerator
    if found is None or not accelerator.compiled or group.ranks == 1:
        return found
    fused = fusion(block)
    if name not in fused.inner:
        return found
    sizes = [local_bytes(tensor, side, group.ranks) for side in (produced, required)]
    reshaped = sizes[0] != sizes[1]
    forward = backward = 0.0
    if reshaped or found.forward_kind is not None:
        moved = sizes[1] if name in fused.written else sum(sizes)
        forward = memory_time(moved, accelerator) + accelerator.kernel_latency
    if tensor.requires_grad and (reshaped or found.backward_kind is not None):
        backward = memory_time(sum(sizes), accelerator) + accelerator.kernel_latency
    return replace(found, forward=found.forward + forward, backward=found.backward + backward)


def block_terms(
    block: BlockClass,
    strategies: Mapping[str, OpStrategy],
    boundary_in: tuple[Placement, ...],
    boundary_out: tuple[Placement, ...],
    group: Group,
    cluster: Cluster,
) -> BlockTerms:
    """Every cost term of a block with those strategies and boundary placements."""
    produced = produced_placements(block, strategies, boundary_in)
    conversions: dict[tuple[str, Placement], ConversionTerm] = {}

    def require(name: str, state: Placement) -> None:
        if (name, state) in conversions or block.tensor(name).kind is TensorKind.PARAMETER:
            return
        resharding = changed_time(name, block, produced[name], state, group, cluster)
        if resharding is None:
            raise InternalError(
                f"{block.name}: {name} is produced as {produced[name]}, required as {state}"
            )
        conversions[name, state] = ConversionTerm(
            tensor=name, produced=produced[name], required=state, resharding=resharding
        )

    ops = []
    for op in block.ops:
        strategy = strategies[op.name]
        ops.append(op_term(op, block, strategy, group, cluster))
        for name, state in zip(op.inputs, required_states(op, block, strategy), strict=True):
            require(name, state)
    for name, state in zip(block.outputs, boundary_out, strict=True):
        require(name, state)
    return BlockTerms(ops=tuple(ops), conversions=tuple(conversions.values()))
