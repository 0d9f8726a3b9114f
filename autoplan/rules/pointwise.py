"""Elementwise operators, with broadcasting.

Any dimension may be sharded. Where an operator is linear in its tensor arguments, addends
pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.elementwise import ADDITIVE, ELEMENTWISE, LINEAR
from autoplan.ir.graph import Op
from autoplan.ir.placement import Placement, Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["LIKE", "elementwise_shards"]

# Bounded slopes: padding stays finite, and a zero gradient stays zero.
_TAME = ("clamp", "gelu", "relu", "sigmoid", "silu", "tanh")
LIKE = ("empty_like", "fill", "full_like", "ones_like", "zeros_like")
_IN_PLACE = ("masked_fill", "pow", "relu", "sigmoid", "silu", "tanh", "clamp")


# Slots in which an operator of three tensors is linear together.
_LINEAR_IN: dict[str, tuple[tuple[int, ...], ...]] = {
    "lerp": ((0, 1),),
    "addcmul": ((0, 1), (0, 2)),
    "addcdiv": ((0, 1),),
}


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names)


def elementwise_shards(view: OpView) -> Iterator[OpStrategy]:
    """Strategies that shard one output dim, with broadcast operands replicated."""
    shape = view.output.shape
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        for shard in view.shards(dim, size):
            inputs: dict[int | None, Placement] = {}
            for slot, tensor in enumerate(view.inputs):
                own = dim - (len(shape) - len(tensor.shape))
                if own >= 0 and tensor.shape[own] == size:
                    inputs[slot] = S(own, shard.blocks)
            yield view.strategy(inputs, shard)


def padded_shards(view: OpView) -> Iterator[OpStrategy]:
    """Strategies of a padded dim, where the operator keeps padding finite and its slope too."""
    shape = view.output.shape
    for dim, size in enumerate(shape):
        for padded in view.padded(dim, size):
            inputs: dict[int | None, Placement] = {}
            for slot, tensor in enumerate(view.inputs):
                own = dim - (len(shape) - len(tensor.shape))
                if own >= 0 and tensor.shape[own] == size:
                    inputs[slot] = replace(padded, dim=own)
            yield view.strategy(inputs, padded)


@rule(*_names(ELEMENTWISE), *(f"aten.{name}_" for name in _IN_PLACE))
def elementwise(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim; addends where elements are chosen between addends and zeros."""
    if op.target.startswith("aten.isin"):
        yield from _membership(view)
        return
    yield from elementwise_shards(view)
    name = op.target.split(".")[1]
    if name.removesuffix("_") in _TAME:
        yield from padded_shards(view)
    if name.startswith("where"):
        yield from _chosen(op, view)
    for slots in _LINEAR_IN.get(name, ()):
        if len(view.inputs) == 3:
            yield view.strategy(dict.fromkeys(slots, P), P)
    if name.startswith("masked_fill") and view.arg(2, "value", 1) == 0:
        yield view.strategy({0: P}, P)


def _chosen(op: Op, view: OpView) -> Iterator[OpStrategy]:
    branches = [view.slots(index) for index in (1, 2)]
    numbers = [view.arg(index) for index, slots in zip((1, 2), branches, strict=True) if not slots]
    if len(numbers) < 2 and not any(numbers):
        yield view.strategy(dict.fromkeys((slot for slots in branches for slot in slots), P), P)


def _membership(view: OpView) -> Iterator[OpStrategy]:
    """Elements tested against a set that is whole on each rank."""
    for dim, size in enumerate(view.output.shape):
        for shard in view.shards(dim, size):
            yield view.strategy({0: shard}, shard)


@rule(*_names(LIKE), "aten.fill_")
def constant_like(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """A constant of another tensor's shape: any dim; the values do not matter."""
    yield from elementwise_shards(view)
    if view.inputs[0].dtype.startswith("float") and len(view.inputs) == 1:
        yield view.strategy({0: P}, R)


@rule(*_names(LINEAR))
def linear_unary(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Copies and casts: addends pass, also from one floating type to another."""
    yield from elementwise_shards(view)
    yield from padded_shards(view)
    if view.inputs and not _truncates(view):
        yield view.strategy({0: P}, P)


def _truncates(view: OpView) -> bool:
    return not view.inputs[0].dtype.startswith(("float", "bfloat"))


@rule(*_names(ADDITIVE), "aten.add_", "aten.sub_")
def additive(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Sums: both operands addends, or neither (``P + R`` would add R once for each rank)."""
    yield from elementwise_shards(view)
    yield from padded_shards(view)
    if len(view.inputs) == 2:
        yield view.strategy({0: P, 1: P}, P)


@rule("aten.mul", "aten.mul_")
def product(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Products: linear in each operand alone."""
    yield from elementwise_shards(view)
    yield from padded_shards(view)
    for slot in range(len(view.inputs)):
        yield view.strategy({slot: P}, P)


@rule("aten.div", "aten.div_")
def quotient(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Quotients: linear in the numerator, unless the result is rounded."""
    yield from elementwise_shards(view)
    for strategy in padded_shards(view):
        if not any(isinstance(divisor, Shard) for divisor in strategy.inputs[1:]):  # x / padding
            yield strategy
    rounded = dict(op.kwargs).get("rounding_mode") is not None or len(op.args) > 2
    if not rounded and view.slot(0) == 0:
        yield view.strategy({0: P}, P)


@rule("aten.tril", "aten.triu")
def triangle(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch dims of a triangular part; linear."""
    for dim, size in enumerate(view.shape()[:-2]):
        for shard in view.shards(dim, size):
            yield view.strategy({0: shard}, shard)
    yield view.strategy({0: P}, P)


@rule("aten.arange", "aten.full", "aten.ones", "aten.zeros", "aten.empty", "aten.scalar_tensor",
      "aten.eye", "aten.linspace", "aten.tril_indices", "aten.triu_indices",
      "aten.hann_window")  # fmt: skip
def creation(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Created whole on every rank: slicing a replicated tensor is free."""
    yield view.strategy({}, *(R,) * len(view.outputs))


@rule("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty")
def creation_like(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Created whole from a size and another tensor's dtype: its values do not matter."""
    yield view.strategy({}, R)
    for dim, size in enumerate(view.shape()):
        for shard in view.shards(dim, size):
            yield view.strategy({0: shard}, R)
    yield view.strategy({0: P}, R)


@rule("aten.glu.default")
def gated(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """First half of a dim times the sigmoid of the second: other dims, and the halves in blocks."""
    ndim = len(view.shape())
    halved = view.integer(1, "dim", -1) % ndim
    for dim, size in enumerate(view.shape()):
        if dim != halved:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, shard)
    yield view.strategy({0: S(halved, 2)}, S(halved))
