"""Random operators whose masks agree between ranks where the value is replicated.

Each call draws one seed from the CPU's default generator. That generator is seeded equally
on the ranks of the ``tp`` axis and differently elsewhere, so ranks that issue the same calls
draw the same seeds; a sharded operator adds its coordinate. Recomputation restores the CPU
generator (`torch.utils.checkpoint` does), hence repeats the mask.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .axis import Axis

__all__ = [
    "replicated_attention",
    "replicated_dropout",
    "set_dropout",
    "sharded_attention",
    "sharded_dropout",
]

_enabled = True


def set_dropout(enabled: bool) -> None:
    """Switch all dropout of the program on or off."""
    global _enabled
    _enabled = enabled


def _draw_seed() -> int:
    return int(torch.randint(2**62, (), device="cpu").item())


def _dropout(x: Tensor, p: float, train: bool, offset: int) -> Tensor:
    if not train or not _enabled or p == 0:
        return x
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability {p} is not in [0, 1]")
    generator = torch.Generator(device=x.device).manual_seed(_draw_seed() + offset)
    if p == 1:
        return x * 0
    keep = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    keep.bernoulli_(1 - p, generator=generator)
    return x * keep * (1 / (1 - p))


def replicated_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of a replicated tensor: the mask is equal on the ranks of the axis."""
    return _dropout(x, p, train, 0)


def sharded_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of a shard: each rank of the axis has a mask of its own."""
    return _dropout(x, p, train, axis.rank)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    offset: int,
) -> Tensor:
    if not _enabled or dropout_p == 0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    seed = _draw_seed() + offset
    devices = [query.device] if query.is_cuda else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def replicated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: Axis,
) -> Tensor:
    """Attention with dropout on replicated tensors: equal masks on the ranks of the axis."""
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, 0)


def sharded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: Axis,
) -> Tensor:
    """Attention with dropout on shards (heads or batch): masks differ between ranks."""
    return _attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, axis.rank
    )
