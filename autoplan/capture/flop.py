"""FLOP of one operator, forward and backward; one multiply-add is 2.

The conventions are those of ``torch.utils.flop_counter``: only contractions count, and
causal attention counts in full. The backward of a contraction is one contraction per
differentiable operand; that of fused attention is 2.5 times its forward, since the kernel
computes the scores again. An operator of another library counts by the formula registered for
it in torch (``torch.utils.flop_counter.register_flop_formula``), backward as for a contraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.utils.flop_counter import flop_registry

from autoplan.capture.trace import TracedOp, TracedTensor
from autoplan.errors import CaptureError
from autoplan.ir.experts import EXPERTS, experts_region
from autoplan.ir.graph import Arg, Const, Ref

__all__ = ["op_flop"]

Tensors = Mapping[str, TracedTensor]


def op_flop(op: TracedOp, tensors: Tensors) -> tuple[int, int]:
    """FLOP of the forward and of the backward."""
    if op.target == EXPERTS:
        region = experts_region(op, tensors.__getitem__)
        return region.flop, region.flop_backward
    inputs = [tensors[name] for name in op.inputs]
    if not op.packet:
        forward = _registered(op, tensors)
        return forward, forward * min(2, sum(tensor.requires_grad for tensor in inputs))
    formula = _FORMULAS.get(op.packet)
    if formula is None:
        return 0, 0
    forward = formula(op, inputs, [tensors[name] for name in op.outputs])
    if not any(tensors[name].requires_grad for name in op.outputs):
        return forward, 0
    if op.packet == "scaled_dot_product_attention":
        return forward, forward * 5 // 2
    if formula is _recurrent:
        return forward, 2 * forward
    first, last = _OPERANDS.get(op.packet, (0, 2))
    operands = inputs[first:last]
    return forward, forward * sum(tensor.requires_grad for tensor in operands)


Formula = Callable[[TracedOp, list[TracedTensor], list[TracedTensor]], int]


def _contraction(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    return 2 * math.prod(outputs[0].shape) * inputs[0].shape[-1]


def _biased(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    return 2 * math.prod(outputs[0].shape) * inputs[1].shape[-1]


def _summed(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    # Products of matrices, all added up.
    return 2 * math.prod(inputs[1].shape) * outputs[0].shape[-1]


def _recurrent(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    # Each step multiplies its input and its state by every matrix of the layers.
    weights = sum(math.prod(tensor.shape) for tensor in inputs[1:] if len(tensor.shape) == 2)
    return 2 * math.prod(inputs[0].shape[:-1]) * weights


def _bilinear(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    return 2 * math.prod(outputs[0].shape[:-1]) * math.prod(inputs[2].shape)


def _attention(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    *batch, queries, width = inputs[0].shape
    keys, value_width = inputs[1].shape[-2], inputs[2].shape[-1]
    return 2 * math.prod(batch) * queries * keys * (width + value_width)


def _convolution(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    # A weight is (out, in / groups, *kernel); transposed, (in, out / groups, *kernel).
    weight = inputs[1].shape
    transposed = "transpose" in op.packet or (op.packet == "convolution" and op.args[6] is True)
    pixels = inputs[0].shape if transposed else outputs[0].shape
    return 2 * pixels[0] * math.prod(pixels[2:]) * math.prod(weight)


def _grouped(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    rows, width = inputs[0].shape[-2:]
    return 2 * rows * width * inputs[1].shape[-1]


def _einsum(op: TracedOp, inputs: list[TracedTensor], outputs: list[TracedTensor]) -> int:
    equation = str(op.args[0]).replace(" ", "")
    assert isinstance(op.args[1], tuple) and all(isinstance(item, Ref) for item in op.args[1])
    sizes: dict[str | int, int] = {}
    terms = equation.partition("->")[0].split(",")
    for term, tensor in zip(terms, inputs, strict=True):
        head, dots, tail = term.partition("...")
        # Dims that an ellipsis stands for are aligned at its last one.
        free = range(len(head) + len(tail) - len(tensor.shape), 0) if dots else ()
        for dim, size in zip((*head, *free, *tail), tensor.shape, strict=True):
            sizes[dim] = max(size, sizes.get(dim, 1))
    return 2 * math.prod(sizes.values())


def _registered(op: TracedOp, tensors: Tensors) -> int:
    namespace, name, _ = op.target.split(".")
    formula = flop_registry.get(getattr(getattr(torch.ops, namespace), name))
    if formula is None:
        return 0

    def example(name: str) -> torch.Tensor:
        tensor = tensors[name]
        return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")

    def value(arg: Arg) -> object:
        if isinstance(arg, Ref):
            return example(arg.name)
        if isinstance(arg, Const):
            return getattr(torch, arg.name) if arg.kind == "dtype" else None
        return [value(item) for item in arg] if isinstance(arg, tuple) else arg

    outputs = [example(name) for name in op.outputs]
    args = [value(arg) for arg in op.args]
    kwargs = {key: value(arg) for key, arg in op.kwargs}
    try:
        return int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else outputs))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CaptureError(
            f"the FLOP formula registered for {op.target} fails: {reason}",
            hint="it gets the call's arguments, shapes in place of tensors, and out_shape",
        ) from error


# Which inputs are multiplied, where it isn't the first two.
_OPERANDS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), (1, 3)),
    "bilinear": (0, 3),
    "einsum": (0, None),
}

_FORMULAS: dict[str, Formula] = {
    "linear": _contraction,
    "mm": _contraction,
    "bmm": _contraction,
    "matmul": _contraction,
    "mv": _contraction,
    "dot": _contraction,
    "vdot": _contraction,
    "addmm": _biased,
    "addmv": _biased,
    "addbmm": _summed,
    "bilinear": _bilinear,
    **dict.fromkeys(("gru", "lstm", "rnn_tanh", "rnn_relu"), _recurrent),
    "baddbmm": _biased,
    "scaled_dot_product_attention": _attention,
    "convolution": _convolution,
    **{f"conv{d}d": _convolution for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": _convolution for d in (1, 2, 3)},
    "_grouped_mm": _grouped,
    "einsum": _einsum,
}
