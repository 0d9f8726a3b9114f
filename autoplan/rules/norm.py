"""Normalisations and softmax: any dim over which no statistics are taken.

Batch norm takes its statistics over the batch, so only channels may be sharded, and only
where it does not also update running statistics: the update of a slice would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Op
from autoplan.ir.placement import Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, S, rule

__all__ = ["batch_norm", "group_norm", "layer_norm", "softmax"]


@rule("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default",
      "aten._fused_rms_norm.default")  # fmt: skip
def layer_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Dims before the normalised ones; weight and bias whole."""
    shape = view.shape()
    normalised = len(view.integers(1, "normalized_shape"))
    for dim in range(len(shape) - normalised):
        for shard in view.shards(dim, shape[dim]):
            yield view.strategy({0: shard}, shard)


def _localize_groups(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    if strategy.inputs[0] != S(1):
        return op
    groups = view.integer(1, "num_groups", 1) // view.ranks
    return replace(op, args=(op.args[0], groups, *op.args[2:]))


@rule("aten.group_norm.default", localizer=_localize_groups)
def group_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch, or whole groups of channels."""
    yield view.strategy({0: S(0)}, S(0))
    if view.integer(1, "num_groups", 1) % view.ranks == 0:
        yield view.strategy(
            {0: S(1), view.slot(2, "weight"): S(0), view.slot(3, "bias"): S(0)}, S(1)
        )


@rule("aten.batch_norm.default")
def batch_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Channels in training without running statistics; any dim in evaluation."""
    slots = tuple(
        view.slot(index, name)
        for index, name in enumerate(("", "weight", "bias", "running_mean", "running_var"))
    )
    training = view.arg(5, "training", False) is True
    if training and slots[3] is not None:
        return
    yield view.strategy({0: S(1), **dict.fromkeys(slots[1:], S(0))}, S(1))
    if not training:
        for dim in range(len(view.shape())):
            if dim != 1:
                yield view.strategy({0: S(dim)}, S(dim))


@rule("aten.instance_norm.default")
def instance_norm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch, where no running statistics are kept."""
    if view.slot(3, "running_mean") is None:
        yield view.strategy({0: S(0)}, S(0))


@rule("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int",
      "aten._log_softmax.default")  # fmt: skip
def softmax(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Every dim but the one that is normalised."""
    shape = view.shape()
    normalised = view.integer(1, "dim", -1) % len(shape)
    for dim, size in enumerate(shape):
        if dim != normalised:
            for blocks in view.blocks(size):
                yield view.strategy({0: Shard(dim, blocks)}, Shard(dim, blocks))
