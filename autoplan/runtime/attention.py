"""Attention whose shards the operator itself does not know: key groups, and rows under a mask.

Both are local: each rank has its query heads (or rows) and the whole keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from .axis import Axis
from .checkpointing import unseen
from .random import _attention

__all__ = ["grouped_attention", "row_attention"]


def grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = True,
    axis: Axis,
) -> Tensor:
    """Attention of this rank's query heads on all key heads, of which it takes its groups.

    ``[..., heads, s, d]``: the rank's heads follow those of the ranks before it. Where its
    groups are cut unevenly, each query head gets a key head of its own.
    """
    heads, kv_heads = query.shape[-3], key.shape[-3]
    group = heads * axis.size // kv_heads
    first = axis.rank * heads
    if heads % group == 0 or group % heads == 0:
        start, count = first // group, max(heads // group, 1)
        key, value = key.narrow(-3, start, count), value.narrow(-3, start, count)
    else:
        owner = torch.arange(first, first + heads, device=key.device) // group
        key, value = key.index_select(-3, owner), value.index_select(-3, owner)
    return _attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale,
        key.shape[-3] != heads, axis.rank,
    )  # fmt: skip


def row_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: Axis,
) -> Tensor:
    """Causal attention of this rank's query rows on the keys that they see.

    The rows follow those of the ranks before it, so they see all keys up to their own place;
    later keys are not read, and their gradient from this rank is zero.
    """
    rows, keys = query.shape[-2], key.shape[-2]
    seen = (axis.rank + 1) * rows
    mask: Tensor | None = None
    if seen <= keys:
        key, value = key.narrow(-2, 0, seen), value.narrow(-2, 0, seen)
        is_first = axis.rank == 0
        if not is_first:
            mask = unseen(lambda: causal_lower_right(rows, seen))
    else:
        is_first = False
        place = torch.arange(seen - rows, seen, device=query.device).unsqueeze(-1)
        mask = torch.arange(keys, device=query.device) <= place
    return _attention(
        query, key, value, mask, dropout_p, is_first, scale, enable_gqa, axis.rank
    )  # fmt: skip
