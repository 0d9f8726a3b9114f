"""Rows of a sharded dim that a rank's outputs read: its own and its neighbours'.

An operator with stride ``s``, padding ``p`` and a kernel that spans ``k`` rows reads, for
output row ``i``, the input rows from ``i * s - p`` on, ``k`` of them. A rank with ``m``
output rows reads from ``rank * m * s - p`` on ``(m - 1) * s + k`` rows: the ranks differ by
a step. What others hold of them is the halo.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.ir.graph import Tensor
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.strategy import InnerCollective

__all__ = ["Rows", "halo_collectives", "spread", "window_rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rank r reads rows from ``r * step + offset`` on, ``length`` of them."""

    step: int
    offset: int
    length: int

    def read(self, rank: int, size: int) -> tuple[int, int]:
        """First row a rank reads of a dim of ``size``, and one past the last."""
        first = rank * self.step + self.offset
        return max(first, 0), min(first + self.length, size)

    def local(self, size: int, ranks: int) -> bool:
        """Whether each rank reads its own rows only, so that the plain operator does."""
        own = size // ranks
        return self.offset == 0 and self.step == own and self.length <= own


def spread(values: tuple[int, ...], count: int, default: int) -> tuple[int, ...]:
    """One number for each of ``count`` dims: those given, one for all, or the default."""
    if not values:
        return (default,) * count
    return values * count if len(values) == 1 else values


def window_rows(outputs: int, ranks: int, *, span: int, stride: int, padding: int) -> Rows | None:
    """Rows read for ``outputs`` output rows on ``ranks``; None when they do not divide.

    >>> window_rows(8, 2, span=3, stride=1, padding=1)
    Rows(step=4, offset=-1, length=6)
    """
    if outputs % ranks:
        return None
    each = outputs // ranks
    return Rows(each * stride, -padding, (each - 1) * stride + span)


def halo_collectives(
    x: Tensor, dim: int, rows: Rows, ranks: int, *, rebuilt: bool = False
) -> tuple[InnerCollective, ...] | None:
    """Messages for the halo of ``x``; None when it reaches past a neighbour.

    The bytes are those of the rank that sends most: halo rows forward, their gradients
    backward. Rows and halo are joined in a new tensor, ``rebuilt``: once more for backward.
    """
    size = x.shape[dim]
    if size == 0 or size % ranks:
        return None
    own = size // ranks
    given, fetched = [0] * ranks, [0] * ranks
    for rank in range(ranks):
        first, last = rows.read(rank, size)
        if first >= last or first < (rank - 1) * own or last > (rank + 2) * own:
            return None
        for owner in range(ranks):
            if owner != rank:
                count = max(min(last, (owner + 1) * own) - max(first, owner * own), 0)
                given[owner] += count
                fetched[rank] += count
    if not max(fetched):
        return ()
    row = x.size // size
    joined = 2 * rows.length * row
    forward = InnerCollective(CollectiveKind.P2P, max(given) * row, copied=joined)
    if not x.requires_grad:
        return (forward,)
    copied = 2 * joined if rebuilt else joined
    return (forward, InnerCollective(CollectiveKind.P2P, max(fetched) * row, True, copied))
