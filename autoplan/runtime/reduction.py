"""Means and running sums over a dimension that is sharded on one axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .axis import Axis
from .collectives import all_reduce

__all__ = [
    "partial_mean",
    "sharded_cumsum",
]


def partial_mean(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    axis: Axis,
) -> Tensor:
    """Addend of the mean: the local mean is of one in ``size`` elements."""
    dims = tuple(range(x.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return torch.mean(x, dims, keepdim, dtype=dtype) / axis.size


def sharded_cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None, axis: Axis) -> Tensor:
    """Running sum along a sharded dim: the local one plus the totals of the ranks before."""
    local = torch.cumsum(x, dim, dtype=dtype)
    total = local.narrow(dim, local.shape[dim] - 1, 1)
    own = torch.arange(axis.size, device=x.device).view(-1, *[1] * x.dim()) == axis.rank
    totals = all_reduce(total * own, axis, backward="all_reduce")
    return local + totals[: axis.rank].sum(0, dtype=local.dtype)
