"""Stage cuts of a chain of blocks with a point for each block, by exact dynamic programming.

A cut of items 0..n-1 into stages takes, with m microbatches and ``t_s`` seconds of stage s,

    sum_s t_s + (m - 1) max_s t_s + 2 sum over cuts of the send time

which is exact for GPipe when forward and backward have the same slowest stage, and an upper
bound for 1F1B. Stage s must hold

    sum static + in_flight[s] (sum activation + boundary it sends) + max transient
        + microbatches (boundary it receives + boundary it sends) <= limit

where bytes of a tied parameter count once in each stage that uses it.

As no stage gains when another is slower, each takes the fastest mix of points that fits
(`solver.mixing`), and the cut is the best for those times (`solver.sweep`). Few of the ranges
need mixing: the cut that is best by lower bounds of their times is the best of all once its own
are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.errors import UsageError
from autoplan.solver.chain import Chain, ChainItem
from autoplan.solver.stage_peaks import least_peaks, lightest_choices
from autoplan.solver.stage_times import StageTimes
from autoplan.solver.sweep import Ranges, fastest_cut, least_peak_cut

__all__ = ["ChainItem", "StageCut", "cut_stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut:
    """Stages as half-open ranges of items, and the index of each item's point.

    ``objective`` is the seconds it minimises, ``peak_memory`` the bytes of the fullest stage
    and ``shortfall`` how far that exceeds the limit: if positive, no cut fits and this one
    has the least peak.
    """

    ranges: Ranges
    choices: tuple[int, ...]
    objective: float
    peak_memory: int
    shortfall: int

    @classmethod
    def given(cls, ranges: Ranges) -> StageCut:
        """Stages that are decided, each item at its only point; not priced."""
        choices = (0,) * ranges[-1][1]
        return cls(ranges=ranges, choices=choices, objective=0.0, peak_memory=0, shortfall=0)


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
    chain = Chain(items, in_flight, microbatches)
    times = StageTimes(chain, memory_limit)
    ranges = _fastest(chain, times, microbatches)
    if ranges is None:
        ranges = least_peak_cut(least_peaks(chain), chain.group_of)
        chosen = [
            lightest_choices(chain, group, first, last)
            for group, (first, last) in zip(chain.group_of, ranges, strict=True)
        ]
    else:
        chosen = [
            times.choices(group, first, last)
            for group, (first, last) in zip(chain.group_of, ranges, strict=True)
        ]
    choices = tuple(index for stage in chosen for index in stage)
    peak = max(
        chain.peak(group, first, last, choices[first:last])
        for group, (first, last) in zip(chain.group_of, ranges, strict=True)
    )
    return StageCut(
        ranges=ranges,
        choices=choices,
        objective=chain.seconds(ranges, choices, microbatches),
        peak_memory=peak,
        shortfall=max(0, peak - memory_limit),
    )


def _fastest(chain: Chain, times: StageTimes, microbatches: int) -> Ranges | None:
    while True:
        found = fastest_cut(times.bounds, chain.crossing, chain.group_of, microbatches)
        if found is None:
            return None
        fresh = [
            (group, first, last)
            for group, (first, last) in zip(chain.group_of, found.ranges, strict=True)
            if not times.exact[group, first, last]
        ]
        if not fresh:
            return found.ranges
        for group, first, last in fresh:
            times.make_exact(group, first, last)
