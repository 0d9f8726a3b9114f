"""Stage cuts of a chain of blocks, by exact dynamic programming.

A cut of items 0..n-1 into stages takes, with m microbatches and ``t_s`` seconds of stage s,

    sum_s t_s + (m - 1) max_s t_s + 2 sum over cuts of the send time

which is exact for GPipe when forward and backward have the same slowest stage, and an upper
bound for 1F1B. Stage s must hold

    sum static + in_flight[s] (sum activation + boundary it sends) + max transient
        + microbatches (boundary it receives + boundary it sends) <= limit

where bytes of a tied parameter count once in each stage that uses it.

The suffix of stages is in the state, so ``in_flight`` is known: ``G[s, i]`` is the least sum
over stages s.. of items i.., none longer than t_max. t_max sweeps the distinct stage times
upwards from the least that is feasible, and stops when even the least sum of all cannot win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import UsageError

__all__ = ["ChainItem", "StageCut", "cut_stages"]

_SAME = 1e-12

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]
_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainItem:
    """One block: seconds for one microbatch, bytes on a rank.

    ``activation`` is held for each microbatch in flight, ``boundary`` likewise when a stage
    ends here, and once for every microbatch of the step on both sides of the end;
    ``transient`` exists one block at a time; ``send`` is seconds to hand one microbatch on.
    ``tied`` lists (key, bytes) that a stage holds once for all its items with that key; they
    come on top of ``static``.
    """

    forward: float
    backward: float
    static: int
    activation: int
    transient: int
    boundary: int
    send: float
    tied: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut:
    """Stages as half-open ranges of items.

    ``objective`` is the seconds it minimises, ``peak_memory`` the bytes of the fullest stage
    and ``shortfall`` how far that exceeds the limit: if positive, no cut fits and this one
    has the least peak.
    """

    ranges: tuple[tuple[int, int], ...]
    objective: float
    peak_memory: int
    shortfall: int

    @classmethod
    def single(cls, items: int) -> StageCut:
        """All items in one stage, not priced."""
        return cls(ranges=((0, items),), objective=0.0, peak_memory=0, shortfall=0)


def cut_stages(
    items: Sequence[ChainItem],
    *,
    stages: int,
    microbatches: int,
    in_flight: Sequence[int],
    memory_limit: int,
) -> StageCut:
    """Fastest cut that fits in memory, or the one with the least peak when none does."""
    if not 1 <= stages <= len(items):
        raise UsageError(
            f"{len(items)} blocks can't be cut into {stages} stages",
            hint=f"use --pp {len(items)} or less",
        )
    assert len(in_flight) == stages
    chain = _Chain(items, in_flight, microbatches)
    fits = chain.memory <= memory_limit
    ranges = _fastest(chain, fits, stages, microbatches)
    if ranges is None:
        ranges = _leanest(chain, stages)
    times = [chain.time[first, last] for first, last in ranges]
    sends = sum(items[last - 1].send for _, last in ranges[:-1])
    peak = max(int(chain.memory[s, first, last]) for s, (first, last) in enumerate(ranges))
    return StageCut(
        ranges=ranges,
        objective=float(sum(times) + (microbatches - 1) * max(times) + 2 * sends),
        peak_memory=peak,
        shortfall=max(0, peak - memory_limit),
    )


class _Chain:
    """Tables over ranges [i, k): ``time`` and ``passing`` [i, k], ``memory`` [s, i, k]."""

    def __init__(
        self, items: Sequence[ChainItem], in_flight: Sequence[int], microbatches: int
    ) -> None:
        count = len(items)
        self.time = _range_sums(np.array([item.forward + item.backward for item in items]))
        crossing = np.array([0.0, *(2 * item.send for item in items)])
        crossing[count] = 0.0
        self.passing: _Floats = self.time + crossing
        sent = np.array([0, *(item.boundary for item in items)], dtype=np.int64)
        sent[count] = 0
        static = _range_sums(np.array([item.static for item in items], dtype=np.int64))
        static = static + _tied_bytes(items) + _range_maxima([item.transient for item in items])
        flying = _range_sums(np.array([item.activation for item in items], dtype=np.int64)) + sent
        flights = np.array(in_flight, dtype=np.int64)
        ends = microbatches * (sent[:, None] + sent[None, :])
        self.memory: _Ints = static + ends + flights[:, None, None] * flying
        self.legal: _Bools = np.arange(count + 1)[None, :] > np.arange(count + 1)[:, None]


def _range_sums(values: NDArray[_Number]) -> NDArray[_Number]:
    prefix = np.concatenate((np.zeros(1, dtype=values.dtype), np.cumsum(values)))
    return prefix[None, :] - prefix[:, None]


def _range_maxima(values: Sequence[int]) -> _Ints:
    count = len(values)
    maxima = np.zeros((count + 1, count + 1), dtype=np.int64)
    for first in range(count):
        maxima[first, first + 1 :] = np.maximum.accumulate(np.array(values[first:]))
    return maxima


def _tied_bytes(items: Sequence[ChainItem]) -> _Ints:
    count = len(items)
    total = np.zeros((count + 1, count + 1), dtype=np.int64)
    previous: dict[str, int] = {}
    for index, item in enumerate(items):
        for key, size in item.tied:
            # A range that starts after the last use of the key pays for it here.
            total[previous.get(key, -1) + 1 : index + 1, index + 1 :] += size
            previous[key] = index
    return total


def _fastest(
    chain: _Chain, fits: _Bools, stages: int, microbatches: int
) -> tuple[tuple[int, int], ...] | None:
    allowed = fits & chain.legal
    limits = _distinct(chain.time[allowed.any(axis=0)])
    if not len(limits):
        return None
    loosest = _least_sum(chain, allowed, stages, limits[-1])
    if loosest is None:
        return None
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if _least_sum(chain, allowed, stages, limits[middle]) is None:
            low = middle + 1
        else:
            high = middle
    best = _Found.of(chain, _least_sum(chain, allowed, stages, limits[low]), microbatches)
    # With few microbatches the sends decide, and the loosest cut may already be the best.
    best = best.better(_Found.of(chain, loosest, microbatches))
    for limit in limits[low + 1 :]:
        if loosest[0] + (microbatches - 1) * limit >= best.objective * (1 - _SAME):
            break
        found = _Found.of(chain, _least_sum(chain, allowed, stages, limit), microbatches)
        best = best.better(found)
    return best.ranges


@dataclass(frozen=True, slots=True)
class _Found:
    """Ranges and their seconds."""

    objective: float
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls,
        chain: _Chain,
        found: tuple[float, tuple[tuple[int, int], ...]] | None,
        microbatches: int,
    ) -> _Found:
        assert found is not None, "a looser limit than a feasible one is feasible"
        slowest = max(float(chain.time[first, last]) for first, last in found[1])
        return cls(found[0] + (microbatches - 1) * slowest, found[1])

    def better(self, other: _Found) -> _Found:
        """The faster of the two, this one when they are equal."""
        return other if other.objective < self.objective * (1 - _SAME) else self


def _distinct(times: _Floats) -> list[float]:
    """Ascending values, each the largest of those that differ only by rounding."""
    distinct: list[float] = []
    for time in np.unique(times).tolist():
        if distinct and time <= distinct[-1] * (1 + _SAME):
            distinct[-1] = time
        else:
            distinct.append(time)
    return distinct


def _least_sum(
    chain: _Chain, allowed: _Bools, stages: int, limit: float
) -> tuple[float, tuple[tuple[int, int], ...]] | None:
    """Least sum of times with no stage over ``limit``, and its ranges."""
    size = chain.time.shape[0]
    rest = np.full(size, np.inf)
    rest[-1] = 0.0
    short = chain.time <= limit
    ends = np.zeros((stages, size), dtype=np.int64)
    for stage in reversed(range(stages)):
        total = np.where(allowed[stage] & short, chain.passing + rest, np.inf)
        ends[stage] = total.argmin(axis=1)
        rest = total[np.arange(size), ends[stage]]
    if not np.isfinite(rest[0]):
        return None
    return float(rest[0]), _follow(ends)


def _leanest(chain: _Chain, stages: int) -> tuple[tuple[int, int], ...]:
    """Ranges with the least peak memory."""
    size = chain.time.shape[0]
    never = np.iinfo(np.int64).max
    rest = np.full(size, never, dtype=np.int64)
    rest[-1] = 0
    ends = np.zeros((stages, size), dtype=np.int64)
    for stage in reversed(range(stages)):
        peak = np.where(chain.legal, np.maximum(chain.memory[stage], rest), never)
        ends[stage] = peak.argmin(axis=1)
        rest = peak[np.arange(size), ends[stage]]
    return _follow(ends)


def _follow(ends: _Ints) -> tuple[tuple[int, int], ...]:
    ranges = []
    first = 0
    for row in ends:
        last = int(row[first])
        ranges.append((first, last))
        first = last
    return tuple(ranges)
