"""Routed experts: tokens sorted by expert, one product for each expert's rows.

Nothing has a size that depends on data where a rank holds all experts. A rank with a part
of them selects its rows, so its work and memory follow the load of its own experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis

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


def experts(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
    """Sum over each token's experts, all of them held by this rank."""
    return _experts(*args, **kwargs, part=None, share=1)


def sharded_experts(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
    """Addend of the sum: what this rank's experts, one run of all, give to all tokens."""
    return _experts(*args, **kwargs, part=axis.rank, share=1)


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

    def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight if transposed else weight.transpose(1, 2)
        out = _grouped(x, weight, ends)
        return out if bias is None else out + bias[chosen]

    x = _apply(_Dispatch, hidden, rows, top_k)
    inner = [project(x, up, up_bias)]
    if gate is not None:
        inner.insert(0, project(x, gate, gate_bias))
    y = _apply(_Activate, activation, layout, alpha, limit, *inner)
    if down_bias is not None and share > 1:
        down_bias = down_bias / share
    y = project(y, down, down_bias) * weights.reshape(-1)[rows].unsqueeze(1)
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


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.sizes = (x.shape[0], top_k)
        return x.index_select(0, rows // top_k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return _spread(grad, rows, *ctx.sizes), None, None


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


def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of ``x`` by the matrix ``weight[e]`` of their group; ``ends`` are row numbers."""
    x = x.to(weight.dtype)
    if _has_kernel(x, weight):
        return F.grouped_mm(x, weight, offs=ends)
    return _apply(_Loop, x, weight, ends)


def _has_kernel(x: Tensor, weight: Tensor) -> bool:
    if not hasattr(F, "grouped_mm"):
        return False
    if x.device.type == "cuda":
        if x.dtype != torch.bfloat16 or torch.cuda.get_device_capability(x.device) < (8, 0):
            return False
    elif x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    # The kernel reads 16 bytes at a time, of x, of the weight and of its gradient.
    widths = (weight.shape[1], weight.shape[2])
    aligned = all(width * x.element_size() % 16 == 0 for width in widths)
    return aligned and weight.data_ptr() % 16 == 0


class _Loop(torch.autograd.Function):
    """The grouped product where there is no kernel for it: one product for each group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        keep_x, keep_weight = ctx.needs_input_grad[1], ctx.needs_input_grad[0]
        ctx.save_for_backward(x if keep_x else None, weight if keep_weight else None, ends)
        out = x.new_zeros(x.shape[0], weight.shape[2])
        for group, (start, end) in enumerate(_groups(ends)):
            torch.mm(x[start:end], weight[group], out=out[start:end])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ends = ctx.saved_tensors
        groups = _groups(ends)
        grad_x = grad_weight = None
        if weight is not None:
            grad_x = grad.new_zeros(grad.shape[0], weight.shape[1])
            for group, (start, end) in enumerate(groups):
                torch.mm(grad[start:end], weight[group].T, out=grad_x[start:end])
        if x is not None:
            grad_weight = grad.new_zeros(len(groups), x.shape[1], grad.shape[1])
            for group, (start, end) in enumerate(groups):
                torch.mm(x[start:end].T, grad[start:end], out=grad_weight[group])
        return grad_x, grad_weight, None


def _groups(ends: Tensor) -> list[tuple[int, int]]:
    last = ends.tolist()
    return list(zip([0, *last[:-1]], last, strict=True))
