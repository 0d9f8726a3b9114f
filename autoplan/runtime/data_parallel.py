"""A stage on the data axis: DDP for ZeRO 0 and 1, FSDP2 for 2 and 3.

===== ============================ ======================== ================================
ZeRO  module                       gradients of a step      parameters
===== ============================ ======================== ================================
0, 1  DDP                          reduced at the last      compute dtype, whole
                                   microbatch
2     FSDP2, gathered from forward reduced by microbatch    float32 shard
      to backward                  (pipeline: at the last)
3     FSDP2, gathered again        likewise                 float32 shard
===== ============================ ======================== ================================

FSDP2 shards no scalars, and nothing that isn't floating: each rank keeps them, and their
gradients are averaged once a step.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from .mesh import MeshAxes

__all__ = ["accumulate", "materialise", "shard_stage", "share_parameters", "uses_fsdp", "wrap_ddp"]


def uses_fsdp(zero: int, axes: MeshAxes) -> bool:
    """Whether parameters are sharded; on one data rank there is nothing to shard."""
    return zero >= 2 and axes.dp.size > 1


def _replace_parameters(module: nn.Module, make: Callable[[nn.Parameter], nn.Parameter]) -> None:
    # A parameter used by several modules must stay one object.
    made: dict[int, nn.Parameter] = {}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = make(parameter)
                child._parameters[name] = made[id(parameter)]


def materialise(stage: nn.Module, device: torch.device) -> None:
    """Give parameters that are on the meta device (uninitialised) memory on ``device``."""

    def make(parameter: nn.Parameter) -> nn.Parameter:
        if not parameter.is_meta:
            return parameter
        value = torch.empty_like(parameter, device=device)
        return nn.Parameter(value, requires_grad=parameter.requires_grad)

    _replace_parameters(stage, make)


def share_parameters(stages: Sequence[nn.Module]) -> list[bool]:
    """Let stages of one rank hold each parameter once; for each, whether another has part of it."""
    named: list[dict[str, nn.Parameter]] = [stage.fqns() for stage in stages]  # type: ignore[operator]
    users = Counter(fqn for own in named for fqn in own)
    first: dict[str, nn.Parameter] = {}
    for stage, own in zip(stages, named, strict=True):
        known = {id(parameter): first.setdefault(fqn, parameter) for fqn, parameter in own.items()}
        if any(users[fqn] > 1 for fqn in own):
            _replace_parameters(stage, partial(_known, known))
    return [any(users[fqn] > 1 for fqn in own) for own in named]


def _known(known: Mapping[int, nn.Parameter], parameter: nn.Parameter) -> nn.Parameter:
    return known[id(parameter)]


def shard_stage(stage: nn.Module, axes: MeshAxes, *, zero: int) -> None:
    """Shard the parameters of a stage in place over the data axis: a unit a block, and the rest.

    Parameters become float32; the compute dtype is the one they had. A block that shares a
    parameter with another belongs to the rest, since a parameter can be in one unit only.
    """
    dtypes = {p.dtype for p in stage.parameters() if p.is_floating_point()}
    if len(dtypes) > 1:
        raise ValueError(f"FSDP2 needs parameters of one dtype, not {sorted(map(str, dtypes))}")
    compute = dtypes.pop()
    wide = torch.promote_types(compute, torch.float32)

    def widen(parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype == wide or not parameter.is_floating_point():
            return parameter
        return nn.Parameter(parameter.detach().to(wide), requires_grad=parameter.requires_grad)

    _replace_parameters(stage, widen)
    policy = MixedPrecisionPolicy(
        param_dtype=None if compute == wide else compute,
        reduce_dtype=wide,
        cast_forward_inputs=False,
    )
    kept = {p for p in stage.parameters() if not _is_sharded(p)}
    for unit in (*_units(stage), stage):
        fully_shard(
            unit,
            mesh=axes.data_mesh,
            reshard_after_forward=zero == 3,
            mp_policy=policy,
            ignored_params=kept,
        )


def _is_sharded(parameter: nn.Parameter) -> bool:
    return parameter.dim() > 0 and parameter.is_floating_point()


def _units(stage: nn.Module) -> Iterator[nn.Module]:
    blocks = list(stage.blocks.children())  # type: ignore[union-attr]
    uses: dict[int, int] = {}
    for block in blocks:
        for parameter in block.parameters():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for block in blocks:
        parameters = list(block.parameters())
        if any(map(_is_sharded, parameters)) and all(uses[id(p)] == 1 for p in parameters):
            yield block


def wrap_ddp(stage: nn.Module, axes: MeshAxes) -> nn.Module:
    """DDP around a stage with whole parameters; the stage itself on a single data rank."""
    if axes.dp.size == 1 or not any(p.requires_grad for p in stage.parameters()):
        return stage
    with warnings.catch_warnings():
        # Newer torch renames broadcast_buffers; the new name is unknown to older ones.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            stage,
            process_group=axes.dp.group,
            broadcast_buffers=False,
            init_sync=False,
            gradient_as_bucket_view=True,
        )


def accumulate(module: nn.Module, microbatches: list[dict[str, Tensor]]) -> Tensor:
    """Mean loss of the microbatches; their mean gradient is accumulated into the parameters."""
    total: Tensor | None = None
    for index, batch in enumerate(microbatches):
        context: AbstractContextManager[Any] = nullcontext()
        if isinstance(module, DistributedDataParallel) and index < len(microbatches) - 1:
            context = module.no_sync()
        with context:
            loss = module(**batch) / len(microbatches)
            loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total
