"""The mesh: named axes over the ranks, and where a group of each axis lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

__all__ = ["Group", "Mesh", "MeshAxis", "spread"]


class MeshAxis(StrEnum):
    """Mesh axes, outermost first: ranks of the last axis are neighbours."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    TP = "tp"


@dataclass(frozen=True, slots=True)
class Group:
    """``ranks`` ranks of a group, and how many of them each unit holds that they touch.

    ``inner`` are in a unit of the innermost network level (a node, or a domain larger than
    one); ``outer`` are in units of the levels beyond, from inside out. A level that is not
    named holds all of them.
    """

    ranks: int
    inner: int
    outer: tuple[int, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the group stays inside the innermost level."""
        return self.inner == self.ranks

    def counts(self, levels: int) -> tuple[int, ...]:
        """Ranks in a unit of each of that many levels; all in the last."""
        named = (self.inner, *self.outer)[: levels - 1]
        return named + (self.ranks,) * (levels - len(named))

    def pair(self) -> Group:
        """The two neighbours of the group that are furthest apart.

        >>> Group(8, 4, (8,)).pair(), Group(4, 4).pair()
        (Group(ranks=2, inner=1, outer=(2,)), Group(ranks=2, inner=2, outer=()))
        """
        return self.of_size(2)

    def of_size(self, ranks: int) -> Group:
        """A group of some of the ranks, one in each unit of every level that the whole leaves."""
        inner, *outer = (ranks if count == self.ranks else 1 for count in (self.inner, *self.outer))
        return Group(ranks, inner, tuple(outer))


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

    @lru_cache(4096)  # noqa: B019 - meshes are small and few
    def group(
        self, axis: MeshAxis, sizes: Sequence[int], *, through: MeshAxis | None = None
    ) -> Group:
        """The group of ``axis`` (or of the axes from ``axis`` in to ``through``) that spreads most.

        ``sizes`` is `Cluster.sizes`. Ranks fill the units of each level in order.
        """
        inner = through or axis
        degrees = self.degrees()
        order = list(MeshAxis)
        ranks = math.prod(degrees[a] for a in order[order.index(axis) : order.index(inner) + 1])
        return spread(ranks, self.stride(inner), sizes, world=self.ranks)


def spread(ranks: int, stride: int, sizes: Sequence[int], *, world: int) -> Group:
    """Group of ``ranks`` ranks ``stride`` apart, over units of ``sizes`` ranks, inside out.

    Where groups don't lie alike in their units, the one counts that has the fewest ranks in
    some unit: those of 6 over nodes of 8 hold 6, or 2 and 4, or 4 and 2.

    >>> spread(16, 1, (8, 64), world=128), spread(6, 1, (8,), world=24)
    (Group(ranks=16, inner=8, outer=(16,)), Group(ranks=6, inner=2, outer=()))
    """
    counts: list[int] = []
    for size in sizes:
        least = counts[-1] if counts else 1
        count = max(least, _held(ranks, stride, size, world))
        while ranks % count or count % least:
            count -= 1
        counts.append(count)
    inner, *outer = counts or [ranks]
    return Group(ranks, inner, tuple(outer))


def _held(ranks: int, stride: int, size: int, world: int) -> int:
    """Ranks of the group in a unit of ``size`` ranks."""
    if world <= size or size % (stride * ranks) == 0:
        return ranks
    if size % stride == 0:
        return math.gcd(size // stride, ranks)
    return min(ranks, max(1, size // stride))
