"""The norm of all gradients of the model, each element counted once, and clipping by it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .mesh import MeshAxes
from .parameters import ParameterSpec

__all__ = ["clip_gradients", "gradient_norm", "local_gradient"]


def local_gradient(parameter: nn.Parameter) -> Tensor | None:
    """Part of the gradient this rank holds: the FSDP2 shard, or all of it."""
    grad = parameter.grad
    return grad.to_local() if isinstance(grad, DTensor) else grad


def gradient_norm(
    parameters: Mapping[str, nn.Parameter],
    specs: Mapping[str, ParameterSpec],
    axes: MeshAxes,
    device: torch.device,
) -> Tensor:
    """2-norm of the gradients of the whole model, a scalar equal on every rank.

    A gradient that several ranks of tp hold, or several stages (tied), counts once. Data
    ranks count only where they hold different shards.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    sharded = any(isinstance(parameter, DTensor) for parameter in parameters.values())
    for fqn, parameter in parameters.items():
        grad = local_gradient(parameter)
        if grad is None:
            continue
        copy = specs[fqn].dim is None and axes.tp.rank != 0
        whole = sharded and not isinstance(parameter, DTensor)
        copy = copy or (whole and axes.dp_shard.rank != 0)
        copy = copy or (fqn in axes.tied and axes.tied[fqn].rank != 0)
        if not copy:
            dtype = torch.promote_types(grad.dtype, torch.float32)
            total += torch.linalg.vector_norm(grad, dtype=dtype) ** 2
    over = [axes.tp, axes.pp, *([axes.dp_shard] if sharded else [])]
    for axis in over:
        if axis.size > 1:
            dist.all_reduce(total, group=axis.group)
    return total.sqrt()


def clip_gradients(
    parameters: Mapping[str, nn.Parameter],
    specs: Mapping[str, ParameterSpec],
    axes: MeshAxes,
    device: torch.device,
    *,
    max_norm: float,
) -> Tensor:
    """Norm before clipping; gradients are scaled in place so that it is at most ``max_norm``."""
    norm = gradient_norm(parameters, specs, axes, device)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters.values():
        grad = local_gradient(parameter)
        if grad is not None:
            grad.mul_(scale.to(grad.dtype))
    return norm
