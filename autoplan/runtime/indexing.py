"""Additions at computed positions where each rank has some of the added elements.

Every rank adds its elements to its share, 1 / size, of the tensor that is added to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .axis import Axis

__all__ = ["partial_index_add", "partial_index_put", "partial_scatter_add"]


def partial_scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor, *, axis: Axis) -> Tensor:
    """Addend of ``scatter_add`` with a shard of ``index`` and ``src``."""
    return torch.scatter_add(x / axis.size, dim, index, src)


def partial_index_add(
    x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1, axis: Axis
) -> Tensor:
    """Addend of ``index_add`` with a shard of ``index`` and ``source``."""
    return torch.index_add(x / axis.size, dim, index, source, alpha=alpha)


def partial_index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    *,
    axis: Axis,
) -> Tensor:
    """Addend of an accumulating ``index_put`` with a shard of the positions and values."""
    return torch.index_put(x / axis.size, list(indices), values, accumulate)
