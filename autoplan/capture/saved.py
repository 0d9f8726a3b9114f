"""What autograd keeps from the forward of one operator until its backward.

A table of torch's derivative formulas. Parameters are not listed: they are resident.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoplan.capture.trace import TracedOp, TracedTensor
from autoplan.ir.experts import EXPERTS, argument, experts_region
from autoplan.ir.graph import Ref, TensorKind, dtype_size

__all__ = ["KNOWN_SAVED", "op_saved"]

_NOTHING = {
    "add", "sub", "rsub", "neg", "view", "reshape", "_unsafe_view", "transpose", "t", "permute",
    "expand", "expand_as", "unsqueeze", "squeeze", "slice", "select", "split", "split_with_sizes",
    "chunk", "unbind", "flatten", "unflatten", "cat", "stack", "contiguous", "clone", "to",
    "sum", "mean", "cumsum", "pad", "constant_pad_nd", "flip", "roll", "repeat",
    "repeat_interleave",
    "narrow", "detach", "alias", "type_as", "movedim", "diagonal", "tril", "triu", "zeros_like",
    "ones_like", "broadcast_tensors",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_log_softmax_backward_data", "unfold", "view_as",
    "squeeze_", "mT", "adjoint", "matrix_H", "numpy_T", "swapaxes", "swapdims", "broadcast_to",
    "new_zeros", "new_empty", "new_ones", "scalar_tensor",
}  # fmt: skip
_OUTPUT = {
    "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "relu", "softmax", "_softmax", "log_softmax",
    "_log_softmax", "reciprocal", "expm1",
}  # fmt: skip
_INPUT = {
    "gelu", "silu", "pow", "cos", "sin", "tan", "log", "log1p", "abs", "square", "clamp",
    "clamp_min", "clamp_max", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "elu",
    "softplus", "mish", "erf", "logsigmoid", "log_sigmoid", "relu6", "selu", "celu", "glu",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d", "max_pool1d", "max_pool3d",
    "adaptive_max_pool2d",
}  # fmt: skip
_PRODUCTS = {"mul", "mm", "bmm", "matmul", "linear", "mv", "_grouped_mm", "einsum"}
_BIASED = {"addmm", "baddbmm"}
_CONVOLUTIONS = {
    "convolution",
    *(f"conv{d}d" for d in (1, 2, 3)),
    *(f"conv_transpose{d}d" for d in (1, 2, 3)),
}
_NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"}
# Index, gather and scatter keep their integer operands; masking keeps its boolean one.
_INDEXED = {
    "embedding", "gather", "index_select", "index", "index_add", "scatter", "scatter_add",
    "index_put", "take_along_dim", "where", "masked_fill", "masked_select", "topk", "sort", "max",
    "min", "amax", "amin", "scatter_reduce", "_index_put_impl", "one_hot",
}  # fmt: skip
# Losses that keep what they compare.
_LOSSES = {
    "nll_loss", "nll_loss_nd", "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits",
}  # fmt: skip
_BAGS = {"embedding_bag", "_embedding_bag"}
_INTEGERS = {"int64", "int32", "int16", "uint8", "bool"}
KNOWN_SAVED = frozenset(
    _NOTHING | _OUTPUT | _INPUT | _PRODUCTS | _BIASED | _CONVOLUTIONS | _NORMS | _INDEXED
    | _LOSSES | _BAGS
    | {"div", "scaled_dot_product_attention", "dropout", "cross_entropy_loss", "l1_loss",
       "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "true_divide",
       "dropout_"}
)  # fmt: skip


def op_saved(op: TracedOp, tensors: Mapping[str, TracedTensor]) -> tuple[tuple[str, ...], int]:
    """Names of the tensors kept, and bytes kept that are no tensor of the graph.

    An operator that is not in `KNOWN_SAVED` counts with all inputs and outputs.
    """
    if not any(tensors[name].requires_grad for name in op.outputs):
        return (), 0
    names, extra = _kept(op, tensors)
    kept = [name for name in names if tensors[name].kind is not TensorKind.PARAMETER]
    return tuple(dict.fromkeys(kept)), extra


def _kept(op: TracedOp, tensors: Mapping[str, TracedTensor]) -> tuple[list[str], int]:
    packet, inputs, outputs = op.packet, list(op.inputs), list(op.outputs)
    if op.target == EXPERTS:
        region = experts_region(op, tensors.__getitem__)
        kept = (argument(op, name) for name in region.saved_arguments)
        return [ref.name for ref in kept if isinstance(ref, Ref)], region.saved
    first = tensors[inputs[0]]
    if packet in _NOTHING:
        return [], 0
    if packet in _OUTPUT:
        return outputs[:1], 0
    if packet in _PRODUCTS:
        return _partners(inputs, tensors), 0
    if packet in _BIASED:
        return _partners(inputs[1:], tensors), 0
    if packet in _INDEXED:
        integers = [name for name in inputs + outputs if tensors[name].dtype in _INTEGERS]
        both_ways = packet == "where" and not integers
        return (inputs if both_ways else integers), 0
    if packet in {"div", "true_divide"}:
        return (_partners(inputs, tensors) + inputs if len(inputs) > 1 else []), 0
    if packet in _CONVOLUTIONS:
        return (inputs[:1] if tensors[inputs[1]].requires_grad else []), 0
    if packet in _NORMS:
        return inputs[:1], _statistics(op, first)
    if packet == "scaled_dot_product_attention":
        return _attention(op, tensors)
    if packet in {"dropout", "dropout_"}:
        return [], math.prod(first.shape)
    if packet == "cross_entropy_loss":
        return inputs[1:2], math.prod(first.shape) * dtype_size(first.dtype)
    if packet in _LOSSES:
        return inputs, 0
    if packet == "l1_loss":  # the difference
        return [], math.prod(first.shape) * dtype_size(first.dtype)
    if packet in _BAGS:
        return [name for name in inputs + outputs[1:] if name != inputs[0]], 0
    if packet.startswith("adaptive_avg_pool"):
        # To one element it is a mean, which keeps only sizes.
        spatial = tensors[outputs[0]].shape[-int(packet[-2]) :]
        return ([] if set(spatial) == {1} else inputs[:1]), 0
    if packet in _INPUT:
        pooled = packet.startswith("max_pool")
        return inputs[:1], 8 * math.prod(tensors[outputs[0]].shape) if pooled else 0
    return inputs + outputs, 0


def _attention(op: TracedOp, tensors: Mapping[str, TracedTensor]) -> tuple[list[str], int]:
    """What the fused kernels keep: their tensors, and the log-sum-exp of each row.

    A boolean mask is kept as numbers of the query's type. The CPU writes out all scores for
    a mask with a gradient and for dropout; CUDA's kernels don't, and are the ones counted.
    """
    query = tensors[op.inputs[0]]
    masks = list(op.inputs[3:])
    number = 8 if query.dtype == "float64" else 4
    extra = number * math.prod(query.shape[:-1])
    for name in [name for name in masks if tensors[name].dtype == "bool"]:
        masks.remove(name)
        extra += math.prod(tensors[name].shape) * dtype_size(query.dtype)
    return [*op.inputs[:3], *masks, *op.outputs], extra


def _partners(inputs: list[str], tensors: Mapping[str, TracedTensor]) -> list[str]:
    """Operands of a product whose partner needs a gradient."""
    if len(inputs) < 2:
        return []
    left, right, *rest = inputs
    kept = [left] if tensors[right].requires_grad else []
    kept += [right] if tensors[left].requires_grad else []
    return kept + rest if all(tensors[name].dtype in _INTEGERS for name in rest) else kept


def _statistics(op: TracedOp, x: TracedTensor) -> int:
    """Bytes of the float32 mean and inverse deviation that a norm keeps."""
    if op.packet in {"batch_norm", "instance_norm"}:
        return 2 * 4 * x.shape[1]
    if op.packet == "group_norm":
        groups = op.args[1]
        assert isinstance(groups, int)
        return 2 * 4 * x.shape[0] * groups
    sizes = op.args[1]
    assert isinstance(sizes, tuple) and not any(isinstance(size, Ref) for size in sizes)
    rows = math.prod(x.shape[: len(x.shape) - len(sizes)])
    return (1 if op.packet == "rms_norm" else 2) * 4 * rows
