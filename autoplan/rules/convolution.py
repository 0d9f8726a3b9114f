"""Convolution and pooling: batch and channels; no spatial dims, which need neighbours' rows."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, S, rule
from autoplan.rules.views import with_arg

__all__ = ["convolution", "pooling"]

_POOLS = (
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d",
    "max_pool3d_with_indices", "upsample_bilinear2d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d",
)  # fmt: skip
_LINEAR_POOLS = ("avg_pool", "upsample")


def _layout(op: Op, view: OpView) -> tuple[int, int, bool]:
    """Groups, the argument that holds them, and whether the convolution is transposed."""
    if op.target.startswith("aten.convolution"):
        return view.integer(8, "groups", 1), 8, view.arg(6, "transposed", False) is True
    if op.target.startswith("aten.conv_transpose"):
        return view.integer(6, "groups", 1), 6, True
    return view.integer(6, "groups", 1), 6, False


def _localize_convolution(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    groups, index, _ = _layout(op, view)
    if groups == 1 or strategy.inputs[0] != S(1):
        return op
    return with_arg(op, index, "groups", groups // view.ranks)


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution.default",
      "aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d",
      localizer=_localize_convolution)  # fmt: skip
def convolution(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch; output channels; input channels without bias; whole groups of channels."""
    if len(view.shape(0)) != len(view.shape(1)):
        return
    groups, _, transposed = _layout(op, view)
    bias = view.slot(2, "bias")
    yield view.strategy({0: S(0)}, S(0))
    outer, inner = (1, 0) if transposed else (0, 1)
    if groups == 1:
        yield view.strategy({1: S(outer), bias: S(0)}, S(1))
        if bias is None:
            yield view.strategy({0: S(1), 1: S(inner)}, P)
    elif groups % view.ranks == 0:
        yield view.strategy({0: S(1), 1: S(0), bias: S(0)}, S(1))


@rule(*(f"aten.{name}" for name in _POOLS))
def pooling(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch and channels; averages and interpolation are linear."""
    ndim = len(view.shape())
    spatial = next(int(c) for c in op.target if c.isdigit())
    for dim in range(ndim - spatial):
        yield view.strategy({0: S(dim)}, S(dim))
    if any(name in op.target for name in _LINEAR_POOLS):
        yield view.strategy({0: P}, P)
