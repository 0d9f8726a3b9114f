"""Least bytes of each range of blocks at each stage, whatever time it takes.

With transients of at most u, each block takes its lightest point of those; the peak is least for
one of the u that are a transient of a point.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.solver.chain import Chain, Point, range_maxima, range_sums

__all__ = ["least_peaks", "lightest_choices"]


def least_peaks(chain: Chain) -> NDArray[np.int64]:
    """Bytes [group, i, k]; the largest integer where the range is empty."""
    peaks: NDArray[np.int64] = np.stack([_least(chain, flight) for flight in chain.flights])
    peaks += chain.fixed
    ends = np.arange(peaks.shape[1])
    peaks[:, ends[:, None] >= ends[None, :]] = np.iinfo(np.int64).max
    return peaks


def lightest_choices(chain: Chain, group: int, first: int, last: int) -> list[int]:
    """Points of the blocks of a range whose peak is the least, the fastest of the lightest."""
    flight = chain.flights[group]
    blocks = [item.points for item in chain.items[first:last]]
    least = max(min(point.transient for point in points) for points in blocks)
    best: tuple[int, list[int]] | None = None
    for level in sorted({point.transient for points in blocks for point in points}):
        if level < least:
            continue
        chosen = [_lightest(points, flight, level) for points in blocks]
        peak = level + sum(
            points[index].weight(flight) for points, index in zip(blocks, chosen, strict=True)
        )
        if best is None or peak < best[0]:
            best = peak, chosen
    assert best is not None
    return best[1]


def _least(chain: Chain, flight: int) -> NDArray[np.int64]:
    # Where the lightest point has the least transient too, no level changes the choice.
    fronts = [_front(points, flight) for points in chain.classes]
    levels = {point.transient for front in fronts if len(front) > 1 for point in front}
    least: NDArray[np.int64] | None = None
    for level in sorted(levels) or [0]:
        chosen = [
            next((point for point in front if point.transient <= level), front[-1])
            for front in fronts
        ]
        peaks = range_sums(chain.of_items([point.weight(flight) for point in chosen]))
        peaks = peaks + range_maxima(chain.of_items([point.transient for point in chosen]))
        least = peaks if least is None else np.minimum(least, peaks)
    assert least is not None
    return least


def _front(points: Sequence[Point], flight: int) -> list[Point]:
    """Points that no other beats in weight and transient, ascending in weight."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.weight(flight), p.transient)):
        if not front or point.transient < front[-1].transient:
            front.append(point)
    return front


def _lightest(points: Sequence[Point], flight: int, level: int) -> int:
    fitting = [i for i, point in enumerate(points) if point.transient <= level]
    return min(fitting, key=lambda i: (points[i].weight(flight), points[i].time))
