"""Products over a dimension that is sharded on one axis: each rank has an addend."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .axis import Axis

__all__ = [
    "row_parallel_addbmm",
    "row_parallel_addmm",
    "row_parallel_addmv",
    "row_parallel_baddbmm",
    "row_parallel_linear",
]


def row_parallel_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, axis: Axis
) -> Tensor:
    """Addend of ``linear``: each rank adds its share of the bias, 1 / size."""
    return F.linear(x, weight, None if bias is None else bias / axis.size)


def row_parallel_addmm(
    bias: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    axis: Axis,
) -> Tensor:
    """Addend of ``addmm``: each rank adds its share of the bias, 1 / size."""
    return torch.addmm(bias, mat1, mat2, beta=beta / axis.size, alpha=alpha)


def row_parallel_addbmm(
    bias: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    axis: Axis,
) -> Tensor:
    """Addend of ``addbmm``: each rank adds its share of the bias, 1 / size."""
    return torch.addbmm(bias, batch1, batch2, beta=beta / axis.size, alpha=alpha)


def row_parallel_addmv(
    bias: Tensor,
    matrix: Tensor,
    vector: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    axis: Axis,
) -> Tensor:
    """Addend of ``addmv``: each rank adds its share of the bias, 1 / size."""
    return torch.addmv(bias, matrix, vector, beta=beta / axis.size, alpha=alpha)


def row_parallel_baddbmm(
    bias: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    axis: Axis,
) -> Tensor:
    """Addend of ``baddbmm``: each rank adds its share of the bias, 1 / size."""
    return torch.baddbmm(bias, batch1, batch2, beta=beta / axis.size, alpha=alpha)
