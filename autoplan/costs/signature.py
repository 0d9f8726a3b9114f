"""What an operator's measured time belongs to: the call, its local shapes and its literals."""

from __future__ import annotations

from autoplan.ir.graph import Arg, BlockClass, Bound, Const, Op, Ref, Tensor
from autoplan.ir.placement import Placement, shard_shape
from autoplan.ir.strategy import OpStrategy

__all__ = ["operator_signature"]


def operator_signature(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> str:
    """Text that is equal for operators that do the same work on one rank.

    Names, and where in the model an operator stands, don't matter; which inputs want a gradient
    does. A function of the runtime may depend on the number of ranks.

    ``aten.mul.Scalar(float32[8,4]g, 0.5) -> float32[8,4]g`` is a product whose input wants a
    gradient.
    """
    slots = iter(zip(op.inputs, strategy.inputs, strict=True))

    def local(name: str, placement: Placement) -> str:
        tensor = block.tensor(name)
        return _tensor_text(tensor, shard_shape(tensor.shape, placement, ranks))

    def text(arg: Arg) -> str:
        match arg:
            case Ref():
                return local(*next(slots))
            case Const(_, name):
                return name or "device"
            case Bound():
                return "number"
            case tuple():
                return f"[{', '.join(map(text, arg))}]"
        return repr(arg)

    called = f"{op.target}@{strategy.call}/{ranks}" if strategy.call else op.target
    args = [text(arg) for arg in op.args]
    args += [f"{key}={text(value)}" for key, value in op.kwargs]
    if op.mask:
        args.append(f"mask={op.mask}")
    made = [local(n, p) for n, p in zip(op.outputs, strategy.outputs, strict=True)]
    return f"{called}({', '.join(args)}) -> {', '.join(made)}"


def _tensor_text(tensor: Tensor, shape: tuple[int, ...]) -> str:
    sizes = ",".join(map(str, shape))
    return f"{tensor.dtype}[{sizes}]{'g' if tensor.requires_grad else ''}"
