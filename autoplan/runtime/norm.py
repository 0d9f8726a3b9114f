"""Normalisations and softmax over values of which each rank of an axis holds a part.

Means and variances of the ranks' equal parts are gathered and combined, which keeps digits
that a sum of squares loses. The backward pass reduces two sums for each statistic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis
from .checkpointing import recomputing, selecting
from .collectives import _apply, _note, _size, gather_flat, reduce_in_place

__all__ = [
    "batch_norm",
    "channel_batch_norm",
    "sharded_log_softmax",
    "sharded_softmax",
    "synced_batch_norm",
    "synced_group_norm",
    "synced_instance_norm",
    "synced_layer_norm",
    "synced_rms_norm",
]

aten = torch.ops.aten


@dataclass(frozen=True)
class _Form:
    """How to normalise: the view in which ``over`` are the dims of one statistic.

    ``affine`` is the shape in which weight and bias broadcast over the input; ``centred``
    is False for a root mean square.
    """

    view: tuple[int, ...]
    over: tuple[int, ...]
    affine: tuple[int, ...]
    eps: float
    centred: bool


def _all_gather(x: Tensor, axis: Axis) -> Tensor:
    """The ranks' tensors, stacked in a new first dim."""
    parts = x.new_empty((axis.size, *x.shape))
    _note("all_gather", _size(parts))
    gather_flat(parts.view(-1), x.contiguous().view(-1), axis)
    return parts


def _moments(x: Tensor, form: _Form, axis: Axis) -> tuple[Tensor, Tensor]:
    """Mean and variance over all ranks; of a root mean square: zero and mean square."""
    if not form.centred:
        square = x.square().mean(form.over, keepdim=True)
        return torch.zeros_like(square), reduce_in_place(square, axis) / axis.size
    var, mean = torch.var_mean(x, form.over, correction=0, keepdim=True)
    means, variances = _all_gather(torch.stack([mean, var]), axis).unbind(1)
    mean = means.mean(0)
    return mean, (variances + (means - mean).square()).mean(0)


class _Normalise(torch.autograd.Function):
    """Normalised input times weight plus bias; returns mean and variance besides."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, form: _Form, axis: Axis
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).reshape(form.view)
        mean, var = _moments(wide, form, axis)
        inverse = (var + form.eps).rsqrt()
        result = wide - mean
        del wide
        result = result.mul_(inverse).reshape(x.shape)
        if weight is not None:
            result *= weight.reshape(form.affine)
        if bias is not None:
            result += bias.reshape(form.affine)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.form, ctx.axis = form, axis
        ctx.mark_non_differentiable(mean, var)
        return result.to(x.dtype), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        form: _Form = ctx.form
        wide = grad.to(mean.dtype)
        normal = x.to(mean.dtype).reshape(form.view) - mean
        normal *= inverse
        # Of the size of the input, only this one besides lives at a time: it ends as the result.
        other = wide * normal.reshape(x.shape)
        of_weight = of_bias = of_x = None
        if weight is not None and ctx.needs_input_grad[1]:
            summed = other.sum_to_size(form.affine).reshape(weight.shape)
            # A copy: where nothing is summed, that is `other` itself, which changes below.
            of_weight = summed.to(weight.dtype, copy=True)
        if ctx.bias is not None and ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            of_bias = wide.sum_to_size(form.affine).reshape(shape).to(dtype)
        if ctx.needs_input_grad[0]:
            scale = None if weight is None else weight.reshape(form.affine).to(mean.dtype)
            if scale is not None:
                other *= scale
            count = math.prod(form.view[dim] for dim in form.over) * ctx.axis.size
            sums = [other.reshape(form.view).sum(form.over, keepdim=True)]
            if scale is not None:
                torch.mul(wide, scale, out=other)
            else:
                other.copy_(wide)
            del wide
            scaled = other.reshape(form.view)
            if form.centred:
                sums.append(scaled.sum(form.over, keepdim=True))
            total = reduce_in_place(torch.stack(sums), ctx.axis) / count
            if form.centred:
                scaled -= total[1]
            normal *= total[0]
            scaled -= normal
            del normal
            scaled *= inverse
            of_x = scaled.reshape(x.shape).to(x.dtype)
        return of_x, of_weight, of_bias, None, None


def _normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, form: _Form, axis: Axis
) -> tuple[Tensor, Tensor, Tensor]:
    result: Any = _apply(_Normalise, x, weight, bias, form, axis)
    y, mean, var = result
    return y, mean, var


def _over_batch(x: Tensor, eps: float) -> _Form:
    over = (0, *range(2, x.dim()))
    affine = (1, x.shape[1], *(1,) * (x.dim() - 2))
    return _Form(tuple(x.shape), over, affine, eps, True)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
    *,
    axis: Axis,
) -> Tensor:
    """Batch norm of a whole tensor; running statistics are updated once, not recomputed."""
    held = (running_mean, running_var)
    if recomputing() or selecting():
        # Copies: a recomputed forward has to keep as many tensors as the first, and of
        # selective recompute it must issue no operator that the first did not.
        running_mean = None if running_mean is None else running_mean.clone()
        running_var = None if running_var is None else running_var.clone()
    result: Tensor = aten.batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
    )
    if selecting() and not recomputing():
        for buffer, updated in zip(held, (running_mean, running_var), strict=True):
            if buffer is not None and updated is not None:
                buffer.copy_(updated)
    return result


def channel_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
    *,
    axis: Axis,
) -> Tensor:
    """Batch norm of this rank's channels; the whole running statistics end on every rank."""
    first, channels = axis.rank * x.shape[1], x.shape[1]
    mean = running_mean.narrow(0, first, channels).clone()
    var = running_var.narrow(0, first, channels).clone()
    result: Tensor = aten.batch_norm(
        x, weight, bias, mean, var, training, momentum, eps, cudnn_enabled
    )
    if not recomputing():
        means, variances = _all_gather(torch.stack([mean, var]), axis).unbind(1)
        running_mean.copy_(means.reshape(-1))
        running_var.copy_(variances.reshape(-1))
    return result


def synced_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
    *,
    axis: Axis,
) -> Tensor:
    """Batch norm in training with the statistics of all ranks' samples and rows."""
    y, mean, var = _normalise(x, weight, bias, _over_batch(x, eps), axis)
    if running_mean is not None and running_var is not None and not recomputing():
        count = x.numel() // x.shape[1] * axis.size
        with torch.no_grad():
            running_mean.lerp_(mean.reshape(-1).to(running_mean.dtype), momentum)
            unbiased = var.reshape(-1) * (count / (count - 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return y


def synced_instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
    *,
    axis: Axis,
) -> Tensor:
    """Instance norm with the statistics of all ranks' rows."""
    affine = (1, x.shape[1], *(1,) * (x.dim() - 2))
    form = _Form(tuple(x.shape), tuple(range(2, x.dim())), affine, eps, True)
    return _normalise(x, weight, bias, form, axis)[0]


def synced_group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
    *,
    axis: Axis,
) -> Tensor:
    """Group norm with the statistics of all ranks' rows."""
    view = (x.shape[0], num_groups, x.shape[1] // num_groups, *x.shape[2:])
    affine = (1, x.shape[1], *(1,) * (x.dim() - 2))
    form = _Form(view, tuple(range(2, len(view))), affine, eps, True)
    return _normalise(x, weight, bias, form, axis)[0]


def synced_layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
    *,
    axis: Axis,
) -> Tensor:
    """Layer norm over dims of which each rank has a slice, as of weight and bias."""
    return _normalise(x, weight, bias, _over_last(x, normalized_shape, eps, True), axis)[0]


def synced_rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    axis: Axis,
) -> Tensor:
    """Root mean square norm over dims of which each rank has a slice, as of the weight."""
    if eps is None:
        wide = torch.promote_types(x.dtype, torch.float32)
        eps = torch.finfo(wide).eps
    return _normalise(x, weight, None, _over_last(x, normalized_shape, eps, False), axis)[0]


def _over_last(x: Tensor, normalized: Sequence[int], eps: float, centred: bool) -> _Form:
    over = tuple(range(x.dim() - len(normalized), x.dim()))
    affine = tuple(size if dim in over else 1 for dim, size in enumerate(x.shape))
    return _Form(tuple(x.shape), over, affine, eps, centred)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, log: bool, dtype: torch.dtype, axis: Axis) -> Tensor:
        ctx.dim, ctx.log, ctx.axis, ctx.dtype = dim, log, axis, x.dtype
        wide = x.to(torch.promote_types(dtype, torch.float32))
        largest = reduce_in_place(wide.amax(dim, keepdim=True), axis, dist.ReduceOp.MAX)
        # A row that is masked throughout stays NaN, as in the whole softmax.
        shifted = wide - largest
        powers = shifted.exp()
        total = reduce_in_place(powers.sum(dim, keepdim=True), axis)
        result = (shifted - total.log() if log else powers / total).to(dtype)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (result,) = ctx.saved_tensors
        wide = torch.promote_types(result.dtype, torch.float32)
        grad, result = grad.to(wide), result.to(wide)
        product = grad if ctx.log else grad * result
        total = reduce_in_place(product.sum(ctx.dim, keepdim=True), ctx.axis)
        share = (result.exp() if ctx.log else result) * total
        return (product - share).to(ctx.dtype), None, None, None, None


def sharded_softmax(
    x: Tensor, dim: int, dtype: torch.dtype | bool | None = None, *, axis: Axis
) -> Tensor:
    """Softmax over a dim of which each rank has a slice."""
    return _apply(_Softmax, x, dim % x.dim(), False, _softmax_dtype(x, dtype), axis)


def sharded_log_softmax(
    x: Tensor, dim: int, dtype: torch.dtype | bool | None = None, *, axis: Axis
) -> Tensor:
    """Logarithm of the softmax over a dim of which each rank has a slice."""
    return _apply(_Softmax, x, dim % x.dim(), True, _softmax_dtype(x, dtype), axis)


def _softmax_dtype(x: Tensor, dtype: torch.dtype | bool | None) -> torch.dtype:
    """Dtype of the result; ``_softmax`` has a flag half_to_float in its place."""
    if dtype is True:
        return torch.promote_types(x.dtype, torch.float32)
    return dtype if isinstance(dtype, torch.dtype) else x.dtype
