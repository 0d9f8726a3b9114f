"""Sums and means of bags of table rows, of which each rank has some rows or some bags.

Of the four results only the first, the bags, is meant to be read; the others are what torch's
own backward needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .axis import Axis

__all__ = ["row_embedding_bag", "vocab_embedding_bag"]

_SUM, _MEAN = 0, 1  # torch's numbers for the mode; 2 is the maximum


def vocab_embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    *,
    axis: Axis,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Addends of the bags: ``weight`` holds this rank's rows, other rows count as zero."""
    if scale_grad_by_freq or sparse or mode not in (_SUM, _MEAN):
        raise ValueError(
            "bags of sharded rows are sums or means, without scale_grad_by_freq and sparse"
        )
    rows = weight.shape[0]
    local = indices - axis.rank * rows
    elsewhere = (local < 0) | (local >= rows)
    padding = -1 if padding_idx is None else padding_idx
    unread = elsewhere | (indices == padding)
    factors = weight.new_ones(indices.shape) if per_sample_weights is None else per_sample_weights
    bags, *rest = torch.ops.aten.embedding_bag.padding_idx(
        weight,
        local.masked_fill(unread, 0),
        offsets,
        False,
        _SUM,
        False,
        factors.masked_fill(unread, 0),
        include_last_offset,
        None,
    )
    if mode == _MEAN:
        sizes = _bag_sizes(indices != padding, offsets, include_last_offset)
        bags = bags / sizes.clamp(min=1).to(bags.dtype).unsqueeze(1)
    return bags, rest[0], rest[1], rest[2]


def _bag_sizes(counted: Tensor, offsets: Tensor, include_last_offset: bool) -> Tensor:
    before = torch.cat([counted.new_zeros(1, dtype=torch.int64), counted.cumsum(0)])
    at = before[offsets]
    if not include_last_offset:
        at = torch.cat([at, before[-1:]])
    return at.diff()


def row_embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    *,
    axis: Axis,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bags of this rank's share; ``indices`` and ``offsets`` are those of all bags."""
    if scale_grad_by_freq or sparse:
        raise ValueError("a share of the bags has neither scale_grad_by_freq nor sparse gradients")
    count = (offsets.shape[0] - int(include_last_offset)) // axis.size
    first = axis.rank * count
    own = offsets[first : first + count + 1]
    begin = int(own[0])
    end = int(own[count]) if own.shape[0] > count else indices.shape[0]
    factors = None if per_sample_weights is None else per_sample_weights[begin:end]
    bags, *rest = torch.ops.aten.embedding_bag.padding_idx(
        weight,
        indices[begin:end],
        own[:count] - begin,
        False,
        mode,
        False,
        factors,
        False,
        padding_idx,
    )
    return bags, rest[0], rest[1], rest[2]
