"""Normalisations and softmax: dims without statistics locally, others with small messages.

Where the ranks share a statistic, means and variances are gathered forward and two sums
reduced backward; a softmax reduces maximum and sum. Statistics of a batch norm are those of
the whole tensor of the axis, so the result is that of the unsharded model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Op, dtype_size
from autoplan.ir.placement import CollectiveKind, Placement, Shard
from autoplan.ir.strategy import InnerCollective, OpStrategy
from autoplan.rules.registry import OpView, R, S, rule

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "softmax"]

_NORM_SLOTS = ("", "weight", "bias", "running_mean", "running_var")


def _statistics(view: OpView, count: int, *, centred: bool = True) -> tuple[InnerCollective, ...]:
    """Messages for ``count`` statistics: mean and variance forward, two sums backward."""
    numbers = (2 if centred else 1) * count * max(dtype_size(view.inputs[0].dtype), 4)
    forward = InnerCollective(CollectiveKind.ALL_REDUCE, numbers)
    if centred:
        forward = InnerCollective(CollectiveKind.ALL_GATHER, numbers * view.ranks)
    if not view.inputs[0].requires_grad:
        return (forward,)
    return (forward, InnerCollective(CollectiveKind.ALL_REDUCE, numbers, backward=True))


@rule("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default",
      "aten._fused_rms_norm.default")  # fmt: skip
def layer_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Dims before the normalised ones, weight and bias whole; normalised dims, all sliced."""
    shape = view.shape()
    outer = len(shape) - len(view.integers(1, "normalized_shape"))
    for dim in range(outer):
        for shard in view.shards(dim, shape[dim]):
            yield view.strategy({0: shard}, shard)
    if len(view.outputs) > 1:
        return
    call = "synced_layer_norm" if "layer" in op.target else "synced_rms_norm"
    centred = call == "synced_layer_norm"
    bias = view.slot(3, "bias") if centred else None
    inner = _statistics(view, math.prod(shape[:outer]), centred=centred)
    for dim in range(outer, len(shape)):
        for shard in view.shards(dim, shape[dim]):
            own = Shard(dim - outer, shard.blocks)
            slots: dict[int | None, Placement] = {0: shard, view.slot(2, "weight"): own, bias: own}
            yield view.strategy(slots, shard, call=call, inner=inner)


def _localize_groups(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    if strategy.inputs[0] != S(1):
        return op
    groups = view.integer(1, "num_groups", 1) // view.ranks
    return replace(op, args=(op.args[0], groups, *op.args[2:]))


@rule("aten.group_norm.default", localizer=_localize_groups)
def group_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch, whole groups of channels, or spatial dims."""
    shape, groups = view.shape(), view.integer(1, "num_groups", 1)
    yield view.strategy({0: S(0)}, S(0))
    if groups % view.ranks == 0:
        yield view.strategy(
            {0: S(1), view.slot(2, "weight"): S(0), view.slot(3, "bias"): S(0)}, S(1)
        )
    inner = _statistics(view, shape[0] * groups)
    for dim in range(2, len(shape)):
        yield view.strategy({0: S(dim)}, S(dim), call="synced_group_norm", inner=inner)


@rule("aten.batch_norm.default")
def batch_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Channels; other dims too, in training with the statistics of all ranks.

    Each rank ends with the whole running statistics of the unsharded operator.
    """
    slots = tuple(view.slot(index, name) for index, name in enumerate(_NORM_SLOTS))
    shape = view.shape()
    others = [S(dim) for dim in range(len(shape)) if dim != 1]
    affine = dict.fromkeys(slots[1:3], S(0))
    if view.arg(5, "training", False) is not True:
        yield view.strategy({0: S(1), **affine, **dict.fromkeys(slots[3:], S(0))}, S(1))
        for shard in others:
            yield view.strategy({0: shard}, shard)
        return
    if slots[3] is None:
        yield view.strategy({0: S(1), **affine}, S(1))
    else:
        yield view.strategy({}, R, call="batch_norm")
        kept = 2 * shape[1] * dtype_size(view.inputs[slots[3]].dtype)
        gather = InnerCollective(CollectiveKind.ALL_GATHER, kept)
        yield view.strategy({0: S(1), **affine}, S(1), call="channel_batch_norm", inner=(gather,))
    inner = _statistics(view, shape[1])
    for shard in others:
        yield view.strategy({0: shard}, shard, call="synced_batch_norm", inner=inner)


@rule("aten.instance_norm.default")
def instance_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Where no running statistics are kept: batch, channels, spatial dims."""
    if view.slot(3, "running_mean") is not None:
        return
    shape = view.shape()
    weight, bias = view.slot(1, "weight"), view.slot(2, "bias")
    yield view.strategy({0: S(0)}, S(0))
    yield view.strategy({0: S(1), weight: S(0), bias: S(0)}, S(1))
    inner = _statistics(view, shape[0] * shape[1])
    for dim in range(2, len(shape)):
        yield view.strategy({0: S(dim)}, S(dim), call="synced_instance_norm", inner=inner)


@rule("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int",
      "aten._log_softmax.default")  # fmt: skip
def softmax(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Every dim but the one that is normalised; that one with its maximum and sum reduced."""
    shape = view.shape()
    normalised = view.integer(1, "dim", -1) % len(shape)
    call = "sharded_log_softmax" if "log" in op.target else "sharded_softmax"
    for dim, size in enumerate(shape):
        for shard in view.shards(dim, size):
            if dim != normalised:
                yield view.strategy({0: shard}, shard)
                continue
            yield view.strategy({0: shard}, shard, call=call, inner=_rows(view, normalised))


def _rows(view: OpView, normalised: int) -> tuple[InnerCollective, ...]:
    x, result = view.inputs[0], view.output
    rows = x.numel // x.shape[normalised] * max(dtype_size(result.dtype), 4)
    reduce = InnerCollective(CollectiveKind.ALL_REDUCE, rows)
    if not x.requires_grad:
        return (reduce, reduce)
    return (reduce, reduce, replace(reduce, backward=True))
