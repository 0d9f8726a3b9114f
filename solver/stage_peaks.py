"""Least bytes of each span of blocks at each stage, whatever time it takes.

With transients of at most u, each block takes its lightest point of those; the peak is least for
one of the u that are a transient of a point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.solver.chain import Chain, Point
from autoplan.solver.spans import inside, most_items, span_maxima, span_sums
from autoplan.solver.sweep import Ranges, least_peak_cut

__all__ = ["least_peaks", "lightest_choices", "lightest_cut"]

_FEW = 16


def lightest_cut(chain: Chain) -> tuple[int, Ranges]:
    """Least bytes of the fullest stage, and a cut that needs no more."""
    light = chain.of_items(chain.weights().min(axis=(0, 2)))
    reach = min(chain.longest, max(_FEW, 2 * math.ceil(len(chain.items) / len(chain.group_of))))
    while True:
        peak, ranges = least_peak_cut(least_peaks(chain, reach), chain.group_of)
        # A span that needs more than this is in no better cut.
        needed = min(chain.longest, most_items(light, peak))
        if needed <= reach:
            return peak, ranges
        reach = needed


def least_peaks(chain: Chain, reach: int) -> NDArray[np.int64]:
    """Bytes [group, l, i] of spans of up to ``reach`` items; the largest integer outside."""
    never = np.iinfo(np.int64).max
    # Of points that weigh the same, the first has the least transient.
    order = np.argsort(chain.transient, axis=1, kind="stable")
    transient = np.take_along_axis(chain.transient, order, axis=1)
    weights = np.take_along_axis(chain.weights(), order[None], axis=2)
    # Where the lightest point has the least transient too, no level changes the choice.
    torn = (weights.argmin(axis=2) > 0).any(axis=0)
    least: NDArray[np.int64] | None = None
    for level in np.unique(transient[torn]).tolist() or [0]:
        within = transient <= np.maximum(level, transient[:, :1])
        chosen = np.where(within, weights, never).argmin(axis=2)[..., None]
        peaks = span_sums(chain.of_items(_taken(weights, chosen)), reach)
        peaks += span_maxima(chain.of_items(_taken(transient[None], chosen)), reach)
        least = peaks if least is None else np.minimum(least, peaks, out=least)
    assert least is not None
    least += chain.fixed(reach)
    least[:, ~inside(len(chain.items), reach)] = never
    return least


def _taken(values: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """``values`` [group, class, point] at the ``chosen`` [group, class, 1] points."""
    return np.take_along_axis(values, chosen, axis=2)[..., 0]


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


def _lightest(points: Sequence[Point], flight: int, level: int) -> int:
    fitting = [i for i, point in enumerate(points) if point.transient <= level]
    return min(fitting, key=lambda i: (points[i].weight(flight), points[i].time))
