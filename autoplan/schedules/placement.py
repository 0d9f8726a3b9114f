"""Which rank holds which stages: in loops, or down and up again as a V."""

from __future__ import annotations

__all__ = ["looped_stages", "v_stages"]


def looped_stages(rank: int, ranks: int, stages_per_rank: int) -> tuple[int, ...]:
    """Stages of a rank when they go round the ranks.

    >>> looped_stages(1, 4, 3)
    (1, 5, 9)
    """
    return tuple(range(rank, ranks * stages_per_rank, ranks))


def v_stages(rank: int, ranks: int) -> tuple[int, int]:
    """Stages of a rank when the first rank holds the first and the last stage.

    >>> [v_stages(rank, 3) for rank in range(3)]
    [(0, 5), (1, 4), (2, 3)]
    """
    return rank, 2 * ranks - 1 - rank
