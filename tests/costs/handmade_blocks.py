"""Blocks made by hand for the cost tests."""

from autoplan.ir.graph import BlockClass, Op, Ref, Tensor, TensorKind
from autoplan.ir.placement import Partial, Replicate, Shard
from autoplan.ir.strategy import OpStrategy

R, P, S = Replicate(), Partial(), Shard


def tensor(name, shape, kind=TensorKind.ACTIVATION, *, grad=True, base="", dtype="bfloat16"):
    return Tensor(
        name=name, shape=shape, dtype=dtype, kind=kind, requires_grad=grad, base=base or name
    )


def linear(name, x, w, y, flop):
    return Op(
        name=name,
        target="aten.linear.default",
        args=(Ref(x), Ref(w)),
        outputs=(y,),
        flop=flop,
        flop_backward=2 * flop,
        saved=(x, w),
    )


def unary(name, target, x, y, saved=()):
    return Op(name=name, target=target, args=(Ref(x),), outputs=(y,), saved=saved)


def block(ops, tensors, *, parameters=()):
    return BlockClass(
        name="block",
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=("x",),
        outputs=("y",),
        parameters=tuple(parameters),
        buffers=(),
        shared=(),
    )


def strategy(inputs, outputs, **rest):
    return OpStrategy(inputs=tuple(inputs), outputs=tuple(outputs), **rest)


TOKENS, HIDDEN, INNER = 8192, 4096, 16384


def two_matmuls():
    """Feed-forward block without its activation function: y = (x w1') w2'."""
    flop = 2 * TOKENS * HIDDEN * INNER
    return block(
        [linear("up", "x", "w1", "h", flop), linear("down", "h", "w2", "y", flop)],
        [
            tensor("x", (TOKENS, HIDDEN), TensorKind.BOUNDARY),
            tensor("w1", (INNER, HIDDEN), TensorKind.PARAMETER),
            tensor("w2", (HIDDEN, INNER), TensorKind.PARAMETER),
            tensor("h", (TOKENS, INNER)),
            tensor("y", (TOKENS, HIDDEN)),
        ],
        parameters=("w1", "w2"),
    )


MEGATRON = {
    "up": strategy([R, S(0)], [S(1)]),
    "down": strategy([S(1), S(1)], [P]),
}
WHOLE = {"up": strategy([R, R], [R]), "down": strategy([R, R], [R])}
