"""Means, losses and running sums over a dimension that is sharded on one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .axis import Axis
from .collectives import all_reduce

__all__ = [
    "partial_binary_cross_entropy_with_logits",
    "partial_l1_loss",
    "partial_mean",
    "partial_mse_loss",
    "partial_smooth_l1_loss",
    "sharded_cumsum",
]

_NAMES = ("none", "mean", "sum")  # torch's numbers for reduction


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


def _share(loss: Callable[..., Tensor], reduction: int, axis: Axis) -> Tensor:
    value = loss(reduction=_NAMES[reduction])
    return value / axis.size if _NAMES[reduction] == "mean" else value


def partial_mse_loss(x: Tensor, target: Tensor, reduction: int = 1, *, axis: Axis) -> Tensor:
    """Addend of the squared error."""
    return _share(lambda **kind: F.mse_loss(x, target, **kind), reduction, axis)


def partial_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, *, axis: Axis) -> Tensor:
    """Addend of the absolute error."""
    return _share(lambda **kind: F.l1_loss(x, target, **kind), reduction, axis)


def partial_smooth_l1_loss(
    x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0, *, axis: Axis
) -> Tensor:
    """Addend of the error that is squared below ``beta`` and absolute above."""
    return _share(lambda **kind: F.smooth_l1_loss(x, target, beta=beta, **kind), reduction, axis)


def partial_binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
    *,
    axis: Axis,
) -> Tensor:
    """Addend of the cross entropy of two classes."""
    return _share(
        lambda **kind: F.binary_cross_entropy_with_logits(
            x, target, weight, pos_weight=pos_weight, **kind
        ),
        reduction,
        axis,
    )


def sharded_cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None, axis: Axis) -> Tensor:
    """Running sum along a sharded dim: the local one plus the totals of the ranks before."""
    local = torch.cumsum(x, dim, dtype=dtype)
    total = local.narrow(dim, local.shape[dim] - 1, 1)
    own = torch.arange(axis.size, device=x.device).view(-1, *[1] * x.dim()) == axis.rank
    totals = all_reduce(total * own, axis, backward="all_reduce")
    return local + totals[: axis.rank].sum(0, dtype=local.dtype)
