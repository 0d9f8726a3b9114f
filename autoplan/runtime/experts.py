"""Routed experts: tokens sorted by expert, one product for each expert's rows.

Nothing has a size that depends on data where a rank holds all experts. A rank with a part
of them selects its rows, so its work and memory follow the load of its own experts.

Each token has as many rows as experts, so rows are what fills the memory. Of those as wide as
a token none is kept for backward: those before the experts are gathered again, and those
behind them are not needed, since ``<g, y W> = <g W^T, y>`` gives the routing weights' gradient.

torch.compile is kept out: it would fail within and then run the whole block uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis
from .checkpointing import keep

__all__ = ["experts", "row_parallel_experts", "sharded_experts"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def experts(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
    """Sum over each token's experts, all of them held by this rank."""
    return _experts(*args, **kwargs, part=None, share=1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def sharded_experts(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
    """Addend of the sum: what this rank's experts, one run of all, give to all tokens."""
    return _experts(*args, **kwargs, part=axis.rank, share=1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def row_parallel_experts(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
    """Addend of the sum: this rank's part of the features inside every expert.

    Each rank adds its share of the last bias, 1 / size.
    """
    return _experts(*args, **kwargs, part=None, share=axis.size)


def _experts(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    gate_bias: Tensor | None = None,
    activation: str = "silu",
    layout: str = "plain",
    transposed: bool = False,
    alpha: float = 1.0,
    limit: float = 0.0,
    *,
    part: int | None,
    share: int,
) -> Tensor:
    top_k, count = index.shape[1], up.shape[0]
    # rows: positions in the flat [tokens * top_k] routing tables, sorted by expert.
    chosen = index.reshape(-1)
    if part is None:
        chosen, rows = torch.sort(chosen, stable=True)
    else:
        chosen = chosen - part * count
        rows = ((chosen >= 0) & (chosen < count)).nonzero().squeeze(1)
        chosen, order = torch.sort(chosen[rows], stable=True)
        rows = rows[order]
    ends = torch.searchsorted(
        chosen, torch.arange(count, device=chosen.device), right=True, out_int32=True
    )

    def oriented(weight: Tensor) -> Tensor:
        return weight if transposed else weight.transpose(1, 2)

    first = [up] if gate is None else [gate, up]
    inner = _Expand.apply(hidden, rows, ends, top_k, *map(oriented, first))  # type: ignore[no-untyped-call]
    for at, bias in enumerate([up_bias] if gate is None else [gate_bias, up_bias]):
        if bias is not None:
            inner = (*inner[:at], inner[at] + bias[chosen], *inner[at + 1 :])
    y = _apply(_Activate, activation, layout, alpha, limit, *inner)
    if down_bias is not None and share > 1:
        down_bias = down_bias / share
    counted = weights.reshape(-1)[rows].unsqueeze(1)
    y = _apply(_Reduce, y, counted, oriented(down), down_bias, chosen, ends)
    return _apply(_Combine, y, rows, top_k, hidden.shape[0]).to(hidden.dtype)


def _apply(function: Any, *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)
    return result


def _spread(x: Tensor, rows: Tensor, tokens: int, top_k: int) -> Tensor:
    """Sum over a token's rows; rows that are not here count nothing. The order is fixed."""
    size = (tokens * top_k, x.shape[1])
    whole = x.new_empty(size) if len(rows) == size[0] else x.new_zeros(size)
    whole.index_copy_(0, rows, x)
    return whole.view(tokens, top_k, -1).sum(dim=1)


class _Expand(torch.autograd.Function):
    """Rows of the tokens through one or two weights ``[E, in, out]``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, ends: Tensor, top_k: int, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        keep_x, keep_weights = any(ctx.needs_input_grad[4:]), ctx.needs_input_grad[0]
        kept = weights if keep_weights else (None,) * len(weights)
        ctx.save_for_backward(x if keep_x else None, rows, ends, *kept)
        ctx.tokens, ctx.top_k, ctx.dtypes = x.shape[0], top_k, (x.dtype, weights[0].dtype)

        def products() -> list[Tensor]:
            gathered = x.index_select(0, rows // top_k).to(weights[0].dtype)
            return [_product(gathered, weight, ends) for weight in weights]

        return tuple(keep(products))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, ends, *weights = ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[0]:
            parts = [
                _product(g, w.transpose(1, 2), ends) for g, w in zip(grads, weights, strict=True)
            ]
            whole = parts.pop(0)
            while parts:
                whole += parts.pop()
            grad_x = _spread(whole.to(ctx.dtypes[0]), rows, ctx.tokens, ctx.top_k)
            del whole  # as large as what follows
        wanted = ctx.needs_input_grad[4:]
        if not any(wanted):
            return (grad_x, None, None, None, *(None for _ in weights))
        gathered = x.index_select(0, rows // ctx.top_k).to(ctx.dtypes[1])
        found = (
            _outer(gathered, g, ends) if want else None
            for g, want in zip(grads, wanted, strict=True)
        )
        return (grad_x, None, None, None, *found)


class _Reduce(torch.autograd.Function):
    """Rows through the last weight ``[E, in, out]``, with its bias, times what they count."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        counted: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chosen: Tensor,
        ends: Tensor,
    ) -> Tensor:
        for_y, for_counted, for_weight, for_bias = ctx.needs_input_grad[:4]
        ctx.save_for_backward(
            y if for_counted or for_weight else None,
            counted if for_y or for_weight or for_bias else None,
            weight if for_y or for_counted else None,
            None if bias is None or not for_counted else bias,
            None if bias is None else chosen,
            ends,
        )
        ctx.dtypes, ctx.bias_shape = (y.dtype, counted.dtype), None if bias is None else bias.shape

        def product() -> list[Tensor]:
            out = _product(y, weight, ends)
            return [(out if bias is None else out + bias[chosen]) * counted]

        return keep(product)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, counted, weight, bias, chosen, ends = ctx.saved_tensors
        for_y, for_counted, for_weight, for_bias = ctx.needs_input_grad[:4]
        grads: list[Tensor | None] = [None, None, None, None]
        if for_y or for_counted:
            back = _product(grad.to(ctx.dtypes[0]), weight.transpose(1, 2), ends)
            if for_y:
                grads[0] = (back * counted).to(ctx.dtypes[0])
            if for_counted:
                wide = torch.promote_types(grad.dtype, torch.float32)
                total = torch.linalg.vecdot(back.to(wide), y.to(wide))
                if bias is not None:
                    total = total + torch.linalg.vecdot(grad.to(wide), bias[chosen].to(wide))
                grads[1] = total.unsqueeze(1).to(ctx.dtypes[1])
            del back
        if for_weight or for_bias:
            scaled = (grad * counted).to(ctx.dtypes[0])
            if for_weight:
                grads[2] = _outer(y, scaled, ends)
            if for_bias:
                table = scaled.new_zeros(ctx.bias_shape)
                grads[3] = table.index_put_((chosen,), scaled, accumulate=True)
        return (*grads, None, None)


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, top_k: int, tokens: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.top_k = top_k
        return _spread(x, rows, tokens, top_k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return grad.index_select(0, rows // ctx.top_k), None, None, None


class _Activate(torch.autograd.Function):
    """The activation, of which only the inputs are kept: backward computes it again."""

    @staticmethod
    def forward(
        ctx: Any, name: str, layout: str, alpha: float, limit: float, *inputs: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.settings = (name, layout, alpha, limit)
        return _activate(*ctx.settings, *inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            y = _activate(*ctx.settings, *inputs)
        return (None, None, None, None, *torch.autograd.grad(y, inputs, grad))


def _activate(name: str, layout: str, alpha: float, limit: float, *inputs: Tensor) -> Tensor:
    if layout == "plain":
        return _ACTIVATIONS[name](inputs[0])
    if layout == "concatenated":
        gate, up = inputs[0].chunk(2, dim=-1)
    elif layout == "interleaved":
        gate, up = inputs[0][..., ::2], inputs[0][..., 1::2]
    elif layout == "separate":
        gate, up = inputs
    else:
        raise ValueError(f"experts have no layout {layout!r}")
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    if name == "swiglu_oai":
        return (up + 1) * (gate * torch.sigmoid(gate * alpha))
    return _ACTIVATIONS[name](gate) * up


def _product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of ``x`` by the matrix ``weight[e]`` of their group; ``ends`` are row numbers."""
    if _has_kernel(x, weight.shape[1], weight.shape[2]) and weight.data_ptr() % 16 == 0:
        return F.grouped_mm(x, weight, offs=ends)
    out = x.new_zeros(x.shape[0], weight.shape[2])
    for group, (start, end) in enumerate(_groups(ends)):
        torch.mm(x[start:end], weight[group], out=out[start:end])
    return out


def _outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """``x^T y`` of each group's rows."""
    if _has_kernel(x, x.shape[1], y.shape[1]) and len(x):
        return F.grouped_mm(x.transpose(0, 1), y.contiguous(), offs=ends)
    groups = _groups(ends)
    out = x.new_zeros(len(groups), x.shape[1], y.shape[1])
    for group, (start, end) in enumerate(groups):
        torch.mm(x[start:end].T, y[start:end], out=out[group])
    return out


def _has_kernel(x: Tensor, *widths: int) -> bool:
    """Whether torch has the grouped product: it reads 16 bytes at a time, of every operand."""
    if not hasattr(F, "grouped_mm"):
        return False
    if x.device.type == "cuda":
        if x.dtype != torch.bfloat16 or torch.cuda.get_device_capability(x.device) < (8, 0):
            return False
    elif x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return all(width * x.element_size() % 16 == 0 for width in widths)


def _groups(ends: Tensor) -> list[tuple[int, int]]:
    last = ends.tolist()
    return list(zip([0, *last[:-1]], last, strict=True))
