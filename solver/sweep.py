"""The fastest cut of a chain into stages, given the seconds of each range at each stage.

With m microbatches, ``t_s`` seconds of stage s and ``c_s`` of the messages at its end, a cut takes

    sum_s t_s + (m - 1) max_s t_s + sum_s c_s

The suffix of stages is in the state: ``G[s, i]`` is the least sum over stages s.. of items i..,
none longer than t_max. One pass finds the least t_max that any cut has. The sum can only fall as
t_max rises, so between two values of t_max the least that a cut may take is known, and only
where that is below the best so far is a value in between tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SAME", "Found", "Ranges", "fastest_cut", "least_peak_cut"]

SAME = 1e-12
"""Relative difference of seconds that is rounding."""

Ranges = tuple[tuple[int, int], ...]
"""Stages as half-open ranges of items."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Found:
    """A cut: ``total`` is its seconds without those that ``slowest``, its longest stage, adds."""

    ranges: Ranges
    total: float
    slowest: float
    objective: float

    def better(self, other: Found) -> Found:
        """The faster of the two, this one when they are equal."""
        return other if other.objective < self.objective * (1 - SAME) else self


def fastest_cut(
    times: _Floats, crossing: _Floats, group_of: Sequence[int], microbatches: int
) -> Found | None:
    """Fastest cut; none when each has an infinite stage.

    ``times`` [group, i, k] is seconds of items i..k-1 at a stage of the group, ``group_of`` says
    which each stage is of, and ``crossing`` [k] is seconds of a stage's messages at its end.
    """
    sweep = _Sweep(times, crossing, group_of, microbatches)
    least, _ = _best(_windows(times, group_of), np.maximum)
    if not np.isfinite(least):
        return None
    low = float(least) * (1 + SAME)
    loosest = sweep.at(np.inf)
    best = sweep.at(low).better(loosest)
    if microbatches == 1:
        return best
    limits = _distinct(times, low, (best.objective - loosest.total) / (microbatches - 1))
    gaps = [(0, len(limits), loosest.total)]
    while gaps:
        start, stop, total = gaps.pop()
        if start == stop:
            continue
        if total + (microbatches - 1) * limits[start] >= best.objective * (1 - SAME):
            continue
        middle = (start + stop) // 2
        found = sweep.at(limits[middle])
        best = best.better(found)
        # From its own slowest stage on, this cut is the best.
        below = bisect_left(limits, found.slowest * (1 - SAME), start, middle)
        gaps += [(middle + 1, stop, total), (start, below, found.total)]
    return best


def least_peak_cut(peaks: NDArray[np.int64], group_of: Sequence[int]) -> Ranges:
    """Cut with the least peak, where ``peaks`` [group, i, k] is bytes."""
    _, ranges = _best(_windows(peaks, group_of), np.maximum)
    return ranges


class _Sweep:
    def __init__(
        self, times: _Floats, crossing: _Floats, group_of: Sequence[int], microbatches: int
    ) -> None:
        self._times, self._group_of, self._microbatches = times, group_of, microbatches
        self._passing = times + crossing

    def at(self, limit: float) -> Found:
        """Least sum with no stage over ``limit`` seconds, which is feasible."""
        allowed = np.where(self._times <= limit, self._passing, np.inf)
        total, ranges = _best(_windows(allowed, self._group_of), np.add)
        slowest = max(
            float(self._times[group, first, last])
            for group, (first, last) in zip(self._group_of, ranges, strict=True)
        )
        objective = float(total) + (self._microbatches - 1) * slowest
        return Found(ranges, float(total), slowest, objective)


def _windows(table: NDArray[Any], group_of: Sequence[int]) -> list[NDArray[Any]]:
    """The ranges that each stage may have, [start - stage, end - stage - 1]."""
    width = table.shape[1] - len(group_of)
    return [
        table[group, stage : stage + width, stage + 1 : stage + 1 + width]
        for stage, group in enumerate(group_of)
    ]


def _best(windows: Sequence[NDArray[Any]], combine: np.ufunc) -> tuple[Any, Ranges]:
    """Least combination of one range of each stage, end to end, and the ranges."""
    width, kind = len(windows[0]), windows[0].dtype
    worst = np.inf if kind.kind == "f" else np.iinfo(kind).max
    rests = [np.full(width, worst, dtype=kind)]
    rests[0][-1] = 0
    for window in reversed(windows):
        rests.append(combine(window, rests[-1]).min(axis=1))
    rests.reverse()
    ranges, start = [], 0
    for stage, window in enumerate(windows):
        end = int(combine(window[start], rests[stage + 1]).argmin())
        ranges.append((stage + start, stage + end + 1))
        start = end
    return rests[0][0], tuple(ranges)


def _distinct(times: _Floats, low: float, high: float) -> list[float]:
    """Ascending values in between, each the largest of those that differ only by rounding."""
    values = np.unique(times[(times > low) & (times <= high * (1 + SAME))])
    last = np.append(values[1:] > values[:-1] * (1 + SAME), True)[: len(values)]
    found: list[float] = values[last].tolist()
    return found
