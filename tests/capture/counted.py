"""FLOP of a module as ``torch.utils.flop_counter`` counts them, where it can.

Two things it leaves out are handed to its own formulas. On a CPU it does not see fused
attention: each call is replaced by an operator that counts as `sdpa_flop_count` and
`sdpa_backward_flop_count` say. The weight gradient of a grouped convolution it counts as if
there were one group: here each group counts as its convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["count_flop"]

_sdpa = F.scaled_dot_product_attention


@torch.library.custom_op("counted::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    with torch.no_grad():
        return _sdpa(query, key, value, mask, 0.0, causal, scale=scale).clone()


@torch.library.custom_op("counted::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # Only counted: what flows on from here matters for no shape.
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, mask, ctx.causal, ctx.scale = inputs
    ctx.has_mask = mask is not None
    ctx.save_for_backward(query, key, value, *([mask] if ctx.has_mask else []))


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, key, value, *rest = ctx.saved_tensors
    mask = rest[0] if rest else None
    grads = torch.ops.counted.attention_backward(
        grad, query, key, value, mask, ctx.causal, ctx.scale
    )
    return (*grads, None if mask is None else torch.zeros_like(mask), None, None)


attention.register_autograd(_backward, setup_context=_setup)


def _forward_formula(query: Any, key: Any, value: Any, *rest: Any, **_: Any) -> int:
    return flop_counter.sdpa_flop_count(query, key, value)


def _backward_formula(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **_: Any) -> int:
    return flop_counter.sdpa_backward_flop_count(grad, query, key, value)


def _convolution_backward(
    grad: Any, x: Any, weight: Any, *args: Any, out_shape: Any = None, **_: Any
) -> int:
    *settings, groups, mask = args
    one_grad = [grad[0], grad[1] // groups, *grad[2:]]
    one_x = [x[0], x[1] // groups, *x[2:]]
    one_weight = [weight[0] // groups, *weight[1:]]
    one = flop_counter.conv_backward_flop(
        one_grad, one_x, one_weight, *settings, 1, mask, out_val=[one_x, one_weight, None]
    )
    return int(one) * int(groups)


def _four_dims(x: Tensor, shape: torch.Size) -> Tensor:
    """``x`` with the query's batch and heads, as the formulas want it."""
    whole = x.expand(*shape[:-2], *x.shape[-2:])
    return whole.unsqueeze(1) if whole.dim() == 3 else whole


def _replaced(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    shape = query.shape
    heads = query.shape[-3]
    if enable_gqa:
        key, value = (x.repeat_interleave(heads // x.shape[-3], -3) for x in (key, value))
    query, key, value = (_four_dims(x, shape) for x in (query, key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    result: Tensor = torch.ops.counted.attention(query, key, value, attn_mask, is_causal, factor)
    return result.reshape(*shape[:-1], result.shape[-1])


@contextmanager
def _attention_is_counted() -> Iterator[None]:
    F.scaled_dot_product_attention = _replaced  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = _sdpa


def count_flop(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[int, int]:
    """FLOP of the forward and of the backward of ``module(**batch)``, which is the loss."""
    mapping = {
        torch.ops.counted.attention: _forward_formula,
        torch.ops.counted.attention_backward: _backward_formula,
        torch.ops.aten.convolution_backward: _convolution_backward,
    }
    counts = []
    with _attention_is_counted():
        with FlopCounterMode(display=False, custom_mapping=mapping) as forward:
            loss = module(**batch)
        counts.append(forward.get_total_flops())
        with FlopCounterMode(display=False, custom_mapping=mapping) as backward:
            loss.backward()
        counts.append(backward.get_total_flops())
    return counts[0], counts[1]
