"""Seconds to convert a tensor from a produced placement to the state a consumer requires.

The collectives are those of the placement algebra. On top come the local copies around them:
an all_reduce works on a clone, and a shard of any but the outermost dimension has to be
brought to or from the order in which ranks send it. Padding travels and is copied like data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.costs.collectives import collective_time
from autoplan.costs.compute import memory_time
from autoplan.ir.graph import Tensor, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind, Placement, Shard, conversion, padded_shape

__all__ = ["Resharding", "conversion_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """Seconds of a conversion, and the collectives it issues on ``payload`` bytes."""

    forward: float
    backward: float
    forward_kind: CollectiveKind | None
    backward_kind: CollectiveKind | None
    payload: int


def conversion_time(
    tensor: Tensor, produced: Placement, required: Placement, group: Group, cluster: Cluster
) -> Resharding | None:
    """Seconds of a conversion, forward and backward; ``None`` when it is illegal.

    A tensor that carries no gradient has no backward. Slicing is free.
    """
    pair = conversion(produced, required, differentiable=tensor.requires_grad)
    if pair is None:
        return None
    payload = max(_payload(tensor, side, group.ranks) for side in (produced, required))
    return Resharding(
        forward=_time(pair.forward, tensor, produced, required, group, cluster),
        backward=_time(pair.backward, tensor, required, produced, group, cluster),
        forward_kind=pair.forward,
        backward_kind=pair.backward,
        payload=payload,
    )


def _payload(tensor: Tensor, placement: Placement, ranks: int) -> int:
    """Bytes of the whole tensor with its padding."""
    return math.prod(padded_shape(tensor.shape, placement, ranks)) * dtype_size(tensor.dtype)


def _time(
    kind: CollectiveKind | None,
    tensor: Tensor,
    source: Placement,
    target: Placement,
    group: Group,
    cluster: Cluster,
) -> float:
    if kind is None or group.ranks == 1:
        return 0.0
    payload = max(_payload(tensor, side, group.ranks) for side in (source, target))
    moved = _copied(kind, tensor, source, target, payload, group.ranks)
    copies = memory_time(moved, cluster.accelerator)
    return collective_time(kind, payload, group, cluster) + copies


def _copied(
    kind: CollectiveKind,
    tensor: Tensor,
    source: Placement,
    target: Placement,
    payload: int,
    ranks: int,
) -> float:
    """Bytes read and written by the local copies around a collective."""
    size = float(payload)
    if kind is CollectiveKind.ALL_REDUCE:
        return 2.0 * size
    if kind is CollectiveKind.ALL_TO_ALL:
        sides = (source, target)
        return 2.0 * size / ranks * sum(_strided(side, tensor) for side in sides)
    shard = source if isinstance(source, Shard) else target
    return 2.0 * size if _strided(shard, tensor) else 0.0


def _strided(placement: Placement, tensor: Tensor) -> bool:
    """Whether a rank's shard is not one run of memory."""
    if not isinstance(placement, Shard):
        return False
    outer = math.prod(tensor.shape[: placement.dim])
    return placement.pad or outer * placement.blocks > 1
