"""Whole parameters and gradients to and from what the ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .axis import Axis
from .mesh import MeshAxes
from .parameters import ParameterSpec, join_parameter, slice_parameter

__all__ = ["fill_parameters", "whole_gradients", "whole_parameters"]


@torch.no_grad()
def fill_parameters(
    parameters: Mapping[str, nn.Parameter],
    specs: Mapping[str, ParameterSpec],
    axes: MeshAxes,
    value: Callable[[str, ParameterSpec], Tensor],
) -> None:
    """Set each parameter's local part from its whole value; one whole value exists at a time."""
    for fqn, parameter in parameters.items():
        part = slice_parameter(value(fqn, specs[fqn]), specs[fqn], axes.tp)
        if not isinstance(parameter, DTensor):
            parameter.copy_(part)
            continue
        local = parameter.to_local()
        # FSDP2 shards dim 0 as torch.chunk does: the last ranks may hold less or nothing.
        rows = -(-part.shape[0] // axes.dp_shard.size)
        first = min(axes.dp_shard.rank * rows, part.shape[0])
        local.copy_(part[first : first + local.shape[0]])


def _whole(value: Tensor, spec: ParameterSpec, tp: Axis) -> Tensor:
    local = value.full_tensor() if isinstance(value, DTensor) else value.detach()
    if spec.dim is None or tp.size == 1:
        return local
    local = local.contiguous()
    parts = [torch.empty_like(local) for _ in range(tp.size)]
    dist.all_gather(parts, local, group=tp.group)
    return join_parameter(parts, spec)


def whole_parameters(
    parameters: Mapping[str, nn.Parameter], specs: Mapping[str, ParameterSpec], axes: MeshAxes
) -> dict[str, Tensor]:
    """Whole values of the stage's parameters, on the CPU of each of its ranks."""
    return {
        fqn: _whole(parameter, specs[fqn], axes.tp).to("cpu", copy=True)
        for fqn, parameter in parameters.items()
    }


def whole_gradients(
    parameters: Mapping[str, nn.Parameter], specs: Mapping[str, ParameterSpec], axes: MeshAxes
) -> dict[str, Tensor]:
    """Whole gradients of the stage's trainable parameters, on the CPU of each of its ranks."""
    return {
        fqn: _whole(parameter.grad, specs[fqn], axes.tp).to("cpu", copy=True)
        for fqn, parameter in parameters.items()
        if parameter.grad is not None
    }
