"""Which tensors of a block change placement, where, and by which call.

A converted copy exists once for each (tensor, required state), made right before its first
consumer. A parameter is never converted: stored whole and used as ``R*`` it keeps a partial
gradient that is summed once a step; its other uses then give 1 / ranks of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoplan.errors import InputError
from autoplan.ir.graph import BlockClass, Tensor
from autoplan.ir.placement import (
    Partial,
    Placement,
    Replicate,
    Shard,
    conversion,
    required_state,
)
from autoplan.ir.strategy import OpStrategy

__all__ = ["BlockLayout", "ConversionCall", "block_layout", "conversion_call", "parameter_call"]


@dataclass(frozen=True, slots=True)
class ConversionCall:
    """A runtime call that converts a tensor: function name and arguments after the tensor."""

    function: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """Placements in a block: of each tensor as produced, and of each op's input slots."""

    produced: Mapping[str, Placement]
    required: Mapping[str, tuple[Placement, ...]]


def block_layout(
    block: BlockClass,
    strategies: Mapping[str, OpStrategy],
    boundary_in: tuple[Placement, ...],
    parameters: Mapping[str, Placement],
) -> BlockLayout:
    """Layout of a block under its strategies; ``parameters`` are storage placements."""
    produced: dict[str, Placement] = {tensor.name: Replicate() for tensor in block.tensors}
    produced.update(zip(block.inputs, boundary_in, strict=True))
    produced.update(parameters)
    required = {}
    for op in block.ops:
        strategy = strategies.get(op.name)
        if strategy is None:
            raise InputError(f"the plan has no strategy for {block.name}.{op.name}")
        if len(strategy.inputs) != len(op.inputs) or len(strategy.outputs) != len(op.outputs):
            raise InputError(
                f"strategy {strategy} of {block.name}.{op.name} does not fit its "
                f"{len(op.inputs)} inputs and {len(op.outputs)} outputs"
            )
        required[op.name] = tuple(
            required_state(
                placement,
                strategy.outputs,
                differentiable=block.tensor(name).requires_grad,
            )
            for name, placement in zip(op.inputs, strategy.inputs, strict=True)
        )
        produced.update(zip(op.outputs, strategy.outputs, strict=True))
    return BlockLayout(produced=produced, required=required)


def parameter_call(
    tensor: Tensor, stored: Placement, required: Placement, axis: str, *, partial: bool
) -> ConversionCall | None:
    """Call around a parameter; ``None``: use it itself. ``partial``: its gradient is summed.

    Where only some uses are ``R*``, the others must not count once for every rank in that sum.
    """
    whole = isinstance(stored, Replicate) and isinstance(required, Replicate)
    if stored != required and not whole:
        raise InputError(f"parameter {tensor.name} is stored as {stored}, used as {required}")
    if required == Replicate(True) and not partial:
        raise InputError(
            f"parameter {tensor.name} is used as R*, but the plan says its gradient is whole"
        )
    if required == Replicate() and partial and tensor.requires_grad:
        return ConversionCall("share_grad", (axis,))
    return None


def conversion_call(
    tensor: Tensor, produced: Placement, required: Placement, axis: str
) -> ConversionCall | None:
    """Call that turns what is produced into what is required; ``None``: use the tensor itself."""
    pair = conversion(produced, required, differentiable=tensor.requires_grad)
    if pair is None:
        raise InputError(f"tensor {tensor.name} can't go from {produced} to {required}")
    match produced, required:
        case Replicate(), Replicate():
            return ConversionCall("partial_grad", (axis,)) if pair.backward else None
        case Replicate(), Shard():
            return ConversionCall("shard", (axis, *_dim(required)))
        case Shard(), Replicate():
            # Padding is cut off by the size, which a shard does not show.
            size = (f"size={tensor.shape[produced.dim]}",) if produced.pad else ()
            args = (axis, *_dim(replace(produced, pad=False)), *size)
            return ConversionCall("all_gather", args if pair.backward else (*args, _SLICE))
        case Partial(), Replicate():
            return ConversionCall("all_reduce", (axis, _REDUCE) if pair.backward else (axis,))
        case Partial(), Shard():
            return ConversionCall("reduce_scatter", (axis, *_dim(required)))
        case Shard(), Shard() if produced != required:
            dims = (f"from_dim={produced.dim}", f"to_dim={required.dim}")
            return ConversionCall("all_to_all", (axis, *dims))
    return None


_SLICE = 'backward="slice"'
_REDUCE = 'backward="all_reduce"'


def _dim(placement: Shard) -> tuple[str, ...]:
    dim = f"dim={placement.dim}"
    if placement.pad:
        return (dim, "pad=True")
    return (dim,) if placement.blocks == 1 else (dim, f"blocks={placement.blocks}")
