"""The fastest cut of a chain into stages, given the seconds of each span at each stage.

With m microbatches, ``t_s`` seconds of stage s and ``c_s`` of the messages at its end, a cut takes

    sum_s t_s + (m - 1) max_s t_s + sum_s c_s

The suffix of stages is in the state: ``G[s, i]`` is the least sum over stages s.. of items i..,
none longer than t_max. One pass finds the least t_max that any cut has. The sum can only fall as
t_max rises, so between two values of t_max the least that a cut may take is known, and only
where that is below the best so far is a value in between tried.

Seconds may be lower bounds: a cut found is made exact until the best one by bounds is exact,
which then is the best of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.solver.spans import at_ends, windows

__all__ = ["SAME", "Found", "Ranges", "SpanTimes", "fastest_cut", "least_peak_cut"]

SAME = 1e-12
"""Relative difference of seconds that is rounding."""

Ranges = tuple[tuple[int, int], ...]
"""Stages as half-open ranges of items."""

_STEP = 1.01


class SpanTimes(Protocol):
    """Seconds ``values`` [group, l, i] of items i to i + l, infinite where they don't fit."""

    values: NDArray[np.float64]

    def make_exact(self, group: int, first: int, last: int) -> bool:
        """Make items first..last-1 exact; false when they were."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cut: ``total`` is its seconds without those that ``slowest``, its longest stage, adds."""

    ranges: Ranges
    total: float
    slowest: float
    objective: float


def fastest_cut(
    times: SpanTimes, crossing: NDArray[np.float64], group_of: Sequence[int], microbatches: int
) -> Found | None:
    """Fastest cut; none when each has an infinite stage.

    ``group_of`` says of which group of ``times`` each stage is, and ``crossing`` [item] is
    seconds of a stage's messages when it ends there.
    """
    sweep = _Sweep(times, crossing, group_of, microbatches)
    least, best = sweep.first()
    if best is None:
        return None
    # Open intervals of t_max, with a bound of the sum in them.
    gaps = [(best.slowest, np.inf, sweep.least_total()), (least, best.slowest, best.total)]
    while gaps:
        low, high, total = gaps.pop()
        if microbatches > 1:
            high = min(high, (best.objective - total) / (microbatches - 1))
        values = _distinct(times.values, low, high)
        if not values or not sweep.may_beat(best, total, values[0]):
            continue
        limit = values[len(values) // 2] if microbatches > 1 else values[-1]
        found = sweep.at(limit)
        gaps.append((limit, high, total))
        if found is not None:
            # From its own slowest stage on, this cut is the best.
            gaps.append((low, found.slowest, found.total))
            if found.objective < best.objective * (1 - SAME):
                best = found
    return best


def least_peak_cut(peaks: NDArray[np.int64], group_of: Sequence[int]) -> tuple[int, Ranges]:
    """Least bytes of the fullest stage, and a cut with that; ``peaks`` [group, l, i] is bytes."""
    peak, ranges = _best([peaks[group] for group in group_of], np.maximum)
    return int(peak), ranges


class _Sweep:
    def __init__(
        self,
        times: SpanTimes,
        crossing: NDArray[np.float64],
        group_of: Sequence[int],
        microbatches: int,
    ) -> None:
        self._times, self._group_of, self._microbatches = times, group_of, microbatches
        self._crossing = at_ends(crossing, times.values.shape[1])

    def first(self) -> tuple[float, Found | None]:
        """Lower bound of the slowest stage, and a cut whose slowest is nearly that."""
        limit = 0.0
        while True:
            least = float(_best([self._times.values[g] for g in self._group_of], np.maximum)[0])
            if least == np.inf:
                return least, None
            limit = max(least * (1 + SAME), limit * _STEP)
            found = self.at(limit)
            if found is not None:
                return least * (1 - SAME), found

    def least_total(self) -> float:
        """Lower bound of the sum of any cut."""
        return float(self._best_within(np.inf)[0])

    def may_beat(self, best: Found, total: float, slowest: float) -> bool:
        """Whether a cut of at least that sum and that slowest stage may be faster."""
        return total + (self._microbatches - 1) * slowest < best.objective * (1 - SAME)

    def at(self, limit: float) -> Found | None:
        """Least sum with no stage over ``limit`` seconds, exactly; none if there is none."""
        while True:
            total, ranges = self._best_within(limit)
            if not np.isfinite(total):
                return None
            spans = [(g, *ends) for g, ends in zip(self._group_of, ranges, strict=True)]
            if not sum(self._times.make_exact(*span) for span in spans):
                break
        slowest = max(float(self._times.values[g, b - a - 1, a]) for g, a, b in spans)
        objective = float(total) + (self._microbatches - 1) * slowest
        return Found(ranges, float(total), slowest, objective)

    def _best_within(self, limit: float) -> tuple[Any, Ranges]:
        values = self._times.values
        allowed = np.where(values <= limit, values + self._crossing, np.inf)
        return _best([allowed[group] for group in self._group_of], np.add)


def _best(tables: Sequence[NDArray[Any]], combine: np.ufunc) -> tuple[Any, Ranges]:
    """Least combination of one span of each stage's table, end to end, and the ranges."""
    (reach, count), kind = tables[0].shape, tables[0].dtype
    worst = np.inf if kind.kind == "f" else np.iinfo(kind).max
    rest = np.full(count + reach, worst, dtype=kind)
    rest[count] = 0
    after = windows(rest, count, skip=1)
    rests = [rest.copy()]
    starts = count - len(tables) + 1
    for stage in reversed(range(len(tables))):
        window = slice(stage, stage + starts)
        least = np.minimum.reduce(combine(tables[stage][:, window], after[:, window]), axis=0)
        rest.fill(worst)
        rest[window] = least
        rests.append(rest.copy())
    ranges, start = [], 0
    for table, rest in zip(tables, reversed(rests[:-1]), strict=True):
        end = (
            start + 1 + int(combine(table[:, start], rest[start + 1 : start + 1 + reach]).argmin())
        )
        ranges.append((start, end))
        start = end
    return rests[-1][0], tuple(ranges)


def _distinct(times: NDArray[np.float64], low: float, high: float) -> list[float]:
    """Ascending values in between, each the largest of those that differ only by rounding."""
    inside = (times > low * (1 + SAME)) & (times < high * (1 - SAME))
    values = np.sort(times[inside])
    last = values[:-1] * (1 + SAME) < values[1:]
    return [*values[:-1][last].tolist(), *values[-1:].tolist()]
