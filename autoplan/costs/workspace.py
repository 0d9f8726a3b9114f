"""Bytes that an operator holds for a moment inside itself, its operands and results aside."""

from __future__ import annotations

from autoplan.costs.compute import local_bytes
from autoplan.costs.convolution import convolution_copies, is_convolution
from autoplan.ir.graph import BlockClass, Op, dtype_size
from autoplan.ir.hardware import HostConvolutions
from autoplan.ir.placement import CollectiveKind, Shard
from autoplan.ir.strategy import OpStrategy

__all__ = ["FUSED_LOSSES", "is_class_shard", "workspace"]

FUSED_LOSSES = ("aten.cross_entropy_loss.default",)
_SYNCED = "synced_"  # the runtime's norms over statistics of all ranks
_WIDE = 4  # bytes of an element of float32, in which the runtime computes at least


def is_class_shard(strategy: OpStrategy) -> bool:
    """Whether each rank has the scores of some classes."""
    return isinstance(strategy.inputs[0], Shard) and strategy.inputs[0].dim == 1


def workspace(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    ranks: int,
    convolutions: HostConvolutions | None = None,
) -> tuple[int, int]:
    """Bytes in forward and in backward: losses, convolutions, and the runtime's norms.

    ``convolutions`` is that of the `Accelerator`.
    """
    if not op.inputs:
        return 0, 0
    first = block.tensor(op.inputs[0])
    size = local_bytes(first, strategy.inputs[0], ranks)
    itemsize = dtype_size(first.dtype)
    gradient = size if first.requires_grad else 0
    if op.target in FUSED_LOSSES:
        # Whole: the scores' logarithms (kept) have a gradient beside that of the scores.
        return _class_shard(size, itemsize) if is_class_shard(strategy) else (0, size)
    if strategy.call.startswith(_SYNCED):
        return _norm(size, itemsize, gradient)
    window = _window(strategy) if strategy.call == "halo_convolution" else 0
    copies = (0, 0)
    if convolutions is not None and is_convolution(op):
        copies = convolution_copies(op, block, strategy, ranks, convolutions, window=window)
    return _around(window, gradient, copies)


def _class_shard(scores: int, itemsize: int) -> tuple[int, int]:
    """Bytes inside the loss of ``scores`` bytes by classes: float32 copies, in both passes.

    Forward shifts the scores; backward's one copy becomes the gradient. Other scores than
    float32 are converted first, and that copy exists beside the other.
    """
    if itemsize >= _WIDE:
        return scores, 0
    wide = scores * _WIDE // itemsize
    return 2 * wide, 2 * wide - scores


def _norm(size: int, itemsize: int, gradient: int) -> tuple[int, int]:
    """Two tensors of the input's elements, of which one ends as the result; copies if narrow."""
    if itemsize >= _WIDE:
        return 0, 2 * size - gradient
    wide = size * _WIDE // itemsize
    return 2 * wide - size, 3 * wide - gradient


def _window(strategy: OpStrategy) -> int:
    """Bytes of the rows that a convolution of sharded rows reads."""
    return sum(
        inner.copied // 2
        for inner in strategy.inner
        if inner.kind is CollectiveKind.P2P and not inner.backward
    )


def _around(window: int, gradient: int, copies: tuple[int, int]) -> tuple[int, int]:
    """With the window of rows; in backward, its gradient too, or beside that the input's."""
    forward, backward = copies
    if not gradient:
        return window + forward, window + backward
    return window + forward, max(2 * window + backward - gradient, window)
