"""Timings that can't be meant: a wrong unit makes one a thousand times too long or too short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

__all__ = ["RANGES", "check_ranges", "check_units"]

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


# What no machine is outside of: a profile that was measured lies three times inside at least, and
# a thousand is a wrong unit. Ranges are wide where devices differ (links, types of 8 bits).
RANGES: Mapping[str, tuple[float, float]] = {
    "best matmul over best memory bandwidth, FLOP/B": (0.1, 8e3),
    "attention over best matmul": (1e-3, 100.0),
    "best collective over memory bandwidth": (1e-6, 100.0),
    "kernel_latency over the shortest timing": (0.0, 1e2),
    "dispatch_latency, s": (0.0, 0.01),
    "kernels beside collectives over alone": (0.02, 50.0),
    "collectives beside kernels over alone": (0.02, 200.0),
    "memory of a rank, B": (2.0**26, 2.0**44),
    "an operator, s": (0.0, 1e3),
}


def check_ranges(found: Mapping[str, float]) -> None:
    """ValueError when a figure of `RANGES` is outside: a whole section may be in another unit."""
    for name, value in found.items():
        low, high = RANGES[name]
        if not low <= value <= high:
            raise ValueError(
                f"{name}: {value:.3g} is outside {low:.3g} to {high:.3g}, where every machine is: "
                "wrong unit in one of them?"
            )
