"""Elementwise operators, with broadcasting.

Any dimension may be sharded. Where an operator is linear in its tensor arguments, addends
pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["ADDITIVE", "ELEMENTWISE", "LINEAR", "elementwise_shards"]

ELEMENTWISE = (
    "abs", "acos", "asin", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "ceil",
    "celu", "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh", "elu", "empty_like", "eq",
    "erf", "exp", "exp2", "expm1", "fill", "floor", "floor_divide", "fmod", "full_like", "ge",
    "gelu", "gt", "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "le",
    "leaky_relu", "lerp", "log", "log10", "log1p", "log2", "log_sigmoid", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "max.other",
    "min.other", "minimum", "mish", "ne", "ones_like", "pow", "reciprocal", "relu", "relu6",
    "remainder", "round", "rsqrt", "rsub", "selu", "sigmoid", "sign", "silu", "sin", "sinh",
    "softplus", "sqrt", "square", "tan", "tanh", "threshold", "trunc", "where.self",
    "where.ScalarOther", "where.ScalarSelf", "xlogy",
    "zeros_like", "addcmul", "addcdiv",
)  # fmt: skip
LINEAR = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "neg", "positive", "to",
          "_to_copy", "type_as")  # fmt: skip
ADDITIVE = ("add", "sub")
_IN_PLACE = ("masked_fill", "pow", "relu", "sigmoid", "silu", "tanh", "clamp", "fill")


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


@rule(*_names(ELEMENTWISE), *(f"aten.{name}_" for name in _IN_PLACE))
def elementwise(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim; no addends."""
    yield from elementwise_shards(view)


@rule(*_names(LINEAR))
def linear_unary(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Copies and casts: addends pass, also from one floating type to another."""
    yield from elementwise_shards(view)
    if view.inputs and not _truncates(view):
        yield view.strategy({0: P}, P)


def _truncates(view: OpView) -> bool:
    return not view.inputs[0].dtype.startswith(("float", "bfloat"))


@rule(*_names(ADDITIVE), "aten.add_", "aten.sub_")
def additive(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Sums: both operands addends, or neither (``P + R`` would add R once for each rank)."""
    yield from elementwise_shards(view)
    if len(view.inputs) == 2:
        yield view.strategy({0: P, 1: P}, P)


@rule("aten.mul", "aten.mul_")
def product(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Products: linear in each operand alone."""
    yield from elementwise_shards(view)
    for slot in range(len(view.inputs)):
        yield view.strategy({slot: P}, P)


@rule("aten.div", "aten.div_")
def quotient(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Quotients: linear in the numerator, unless the result is rounded."""
    yield from elementwise_shards(view)
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


@rule("aten.arange", "aten.full", "aten.ones", "aten.zeros", "aten.empty", "aten.scalar_tensor")
def creation(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Created whole on every rank: slicing a replicated tensor is free."""
    yield view.strategy({}, *(R,) * len(view.outputs))
