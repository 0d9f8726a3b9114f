"""The mesh: named axes over the ranks, and where a group of each axis lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Group", "Mesh", "MeshAxis"]


class MeshAxis(StrEnum):
    """Mesh axes, outermost first: ranks of the last axis are neighbours."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    TP = "tp"


@dataclass(frozen=True, slots=True)
class Group:
    """``ranks`` ranks of a group, ``per_node`` of them in each node they touch."""

    ranks: int
    per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of the axes in `MeshAxis` order, outermost first.

    >>> Mesh(pp=2, tp=4).rank_of(pp=1, tp=3)
    7
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1

    @property
    def ranks(self) -> int:
        """World size."""
        return self.pp * self.dp_replicate * self.dp_shard * self.tp

    @property
    def dp(self) -> int:
        """Data-parallel ranks: replicas times shards."""
        return self.dp_replicate * self.dp_shard

    def degrees(self) -> dict[MeshAxis, int]:
        """Axis to degree, outermost first."""
        return {axis: getattr(self, axis.value) for axis in MeshAxis}

    def rank_of(self, *, pp: int = 0, dp_replicate: int = 0, dp_shard: int = 0, tp: int = 0) -> int:
        """Global rank at those coordinates."""
        rank = pp
        rank = rank * self.dp_replicate + dp_replicate
        rank = rank * self.dp_shard + dp_shard
        return rank * self.tp + tp

    def stride(self, axis: MeshAxis) -> int:
        """Distance in ranks between neighbours on ``axis``."""
        degrees = self.degrees()
        order = list(MeshAxis)
        return math.prod(degrees[inner] for inner in order[order.index(axis) + 1 :])

    def group(
        self, axis: MeshAxis, ranks_per_node: int, *, through: MeshAxis | None = None
    ) -> Group:
        """The group of ``axis`` (or of the axes from ``axis`` in to ``through``) that spreads most.

        Ranks fill nodes in order, so a group lies inside a node when its span does.
        """
        inner = through or axis
        stride = self.stride(inner)
        degrees = self.degrees()
        order = list(MeshAxis)
        ranks = math.prod(degrees[a] for a in order[order.index(axis) : order.index(inner) + 1])
        per_node = min(ranks, max(1, ranks_per_node // stride))
        while ranks % per_node:
            per_node -= 1
        return Group(ranks, per_node)
