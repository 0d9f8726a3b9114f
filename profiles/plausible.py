"""Timings that can't be meant: a wrong unit makes one a thousand times too long or too short."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["check_units"]

# A smaller amount of the same work takes at most so many times as long, and a larger one runs
# at a rate at most so many times lower; noise and caches stay far below, units far above.
_LIMIT = 100.0


def check_units(field: str, series: Sequence[tuple[int, float, float]]) -> None:
    """ValueError when a timing is out of line; ``series`` is (index, amount, seconds)."""
    ordered = sorted(series, key=lambda point: point[1])
    for (small, less, short), (large, more, long) in pairwise(ordered):
        if short > _LIMIT * long:
            odd, other = (small, short), (large, long)
        elif long / more > _LIMIT * short / less:
            odd, other = (large, long), (small, short)
        else:
            continue
        raise ValueError(
            f"{field}.{odd[0]}.time: {odd[1]:.3g} s does not go with {other[1]:.3g} s of "
            f"{field}.{other[0]} for {more / less:.3g} times as much: wrong unit in one of them?"
        )
