"""Process groups of a plan's mesh: pp outermost, then dp_replicate, dp_shard, tp innermost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .axis import SINGLE, Axis
from .planfile import ProgramPlan

__all__ = ["MeshAxes", "build_mesh"]

_NAMES = ("pp", "dp_replicate", "dp_shard", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxes:
    """Axes of the mesh as this rank sees them; ``dp`` is dp_replicate and dp_shard together.

    ``tied`` has, for each parameter that several pipeline ranks use, the axis of those that hold
    the same part of it (of this rank's parameters only). ``device_mesh`` is None on one rank.
    """

    pp: Axis
    dp_replicate: Axis
    dp_shard: Axis
    dp: Axis
    tp: Axis
    tied: dict[str, Axis]
    device_mesh: DeviceMesh | None

    @property
    def data_mesh(self) -> DeviceMesh:
        """Mesh for FSDP2: replicas x shards, or the shards alone when there is one replica."""
        assert self.device_mesh is not None
        if self.dp_replicate.size == 1:
            return self.device_mesh["dp_shard"]
        return self.device_mesh["dp_replicate", "dp_shard"]


def build_mesh(plan: ProgramPlan, device: torch.device) -> MeshAxes:
    """Axes of the plan's mesh; the default process group must exist if it has several ranks."""
    if plan.ranks == 1:
        return MeshAxes(
            pp=SINGLE,
            dp_replicate=SINGLE,
            dp_shard=SINGLE,
            dp=SINGLE,
            tp=SINGLE,
            tied={},
            device_mesh=None,
        )
    shape = (plan.pp, plan.dp_replicate, plan.dp_shard, plan.tp)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=_NAMES)
    axes = {name: _axis(mesh, name) for name in _NAMES}
    dp = SINGLE
    if plan.dp > 1:
        both = plan.dp_replicate > 1 and plan.dp_shard > 1
        if both:
            flat = mesh["dp_replicate", "dp_shard"]._flatten("dp")
            dp = Axis(group=flat.get_group(), rank=flat.get_local_rank(), size=plan.dp)
        else:
            dp = axes["dp_replicate"] if plan.dp_replicate > 1 else axes["dp_shard"]
    return MeshAxes(
        pp=axes["pp"],
        dp_replicate=axes["dp_replicate"],
        dp_shard=axes["dp_shard"],
        dp=dp,
        tp=axes["tp"],
        tied=_tied_axes(plan),
        device_mesh=mesh,
    )


def _axis(mesh: DeviceMesh, name: str) -> Axis:
    sub = mesh[name]
    if sub.size() == 1:
        return SINGLE
    return Axis(group=sub.get_group(), rank=sub.get_local_rank(), size=sub.size())


def _tied_axes(plan: ProgramPlan) -> dict[str, Axis]:
    if plan.pp == 1:
        return {}
    inner = plan.dp * plan.tp
    own, offset = divmod(dist.get_rank(), inner)
    axes: dict[tuple[int, ...], Axis] = {}
    tied: dict[str, Axis] = {}
    for parameter in plan.graph["parameters"]:
        holders = plan.ranks_of(parameter["fqn"])
        if len(holders) < 2:
            continue
        if holders not in axes:
            # Every rank has to take part in the creation of every group, in the same order.
            groups = [
                dist.new_group([r * inner + member for r in holders]) for member in range(inner)
            ]
            rank = holders.index(own) if own in holders else 0
            axes[holders] = Axis(group=groups[offset], rank=rank, size=len(holders))
        if own in holders:
            tied[parameter["fqn"]] = axes[holders]
    return tied
