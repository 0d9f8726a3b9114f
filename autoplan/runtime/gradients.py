"""A whole gradient where partial ones are summed later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis

__all__ = ["share_grad"]


class _ShareGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.size, None


def share_grad(x: Tensor, axis: Axis) -> Tensor:
    """The tensor itself; each rank gets its share, 1 / size, of the whole gradient.

    For the use in state R of a parameter that is used as R* elsewhere: its gradients are
    summed over the axis once a step, and this one is whole on every rank already.
    """
    if axis.size == 1:
        return x
    shared: Tensor = _ShareGrad.apply(x, axis.size)  # type: ignore[no-untyped-call]
    return shared
