"""Stage cuts of a chain of blocks with a point for each block, by exact dynamic programming.

A cut of items 0..n-1 into stages takes, with m microbatches and ``t_s`` seconds of stage s,

    sum_s t_s + (m - 1) max_s t_s + 2 sum over cuts of the send time

which is exact for GPipe when forward and backward have the same slowest stage, and an upper
bound for 1F1B. Where a rank has several stages, its ``turns`` stand for m: see `turns_of`.
Stage s must hold

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

import numpy as np

from autoplan.errors import UsageError
from autoplan.solver.chain import Chain, ChainItem
from autoplan.solver.spans import most_items
from autoplan.solver.stage_peaks import lightest_choices, lightest_cut
from autoplan.solver.stage_times import Mixes, StageTimes
from autoplan.solver.sweep import Ranges, fastest_cut

__all__ = ["ChainItem", "StageCut", "cut_stages", "turns_of"]

# Spans of fewer items are not worth leaving out.
_FEW = 16
_SLACK = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut:
    """Stages as half-open ranges of items, and the index of each item's point.

    ``objective`` is the seconds it minimises, ``peaks`` the bytes of each stage
    and ``shortfall`` how far the fullest exceeds the limit: if positive, no cut fits and this one
    has the least peak.
    """

    ranges: Ranges
    choices: tuple[int, ...]
    objective: float
    peaks: tuple[int, ...]
    shortfall: int

    @property
    def peak_memory(self) -> int:
        """Bytes of the fullest stage."""
        return max(self.peaks)

    @classmethod
    def given(cls, ranges: Ranges) -> StageCut:
        """Stages that are decided, each item at its only point; not priced."""
        choices = (0,) * ranges[-1][1]
        peaks = (0,) * len(ranges)
        return cls(ranges=ranges, choices=choices, objective=0.0, peaks=peaks, shortfall=0)


def turns_of(ranks: int, stages_per_rank: int, microbatches: int) -> int:
    """How often the longest stage counts where ranks take turns at stages of their own.

    Equal stages of t seconds in p ranks take ``(v m + p - 1) t``, the first term the work of a
    rank, the second its wait for the first microbatch: the formula above has p v of them once.

    >>> turns_of(4, 1, 8), turns_of(4, 2, 8)
    (8, 12)
    """
    return max(microbatches, ranks + stages_per_rank * (microbatches - ranks))


def cut_stages(
    items: Sequence[ChainItem],
    *,
    stages: int,
    microbatches: int,
    in_flight: Sequence[int],
    memory_limit: int,
    resident: Sequence[int] = (),
    turns: int = 0,
    ranges: Ranges = (),
) -> StageCut:
    """Fastest cut that fits in memory, or the one with the least peak when none does.

    ``resident`` is bytes that each stage holds whatever its blocks are; ``turns`` stand for the
    microbatches in the seconds, if they differ. Of ``ranges``, where they are given, only the
    points are chosen.
    """
    if not 1 <= stages <= len(items):
        raise UsageError(
            f"{len(items)} blocks can't be cut into {stages} stages",
            hint=f"use --pp {len(items)} or less",
        )
    assert len(in_flight) == stages
    chain = Chain(items, in_flight, microbatches, resident, turns)
    if ranges:
        chosen = _filled(chain, ranges, memory_limit)
    else:
        ranges, chosen = _best(chain, memory_limit)
    choices = tuple(point for stage in chosen for point in stage)
    peaks = tuple(
        chain.peak(group, first, last, choices[first:last])
        for group, (first, last) in zip(chain.group_of, ranges, strict=True)
    )
    return StageCut(
        ranges=ranges,
        choices=choices,
        objective=chain.seconds(ranges, choices),
        peaks=peaks,
        shortfall=max(0, max(peaks) - memory_limit),
    )


_Chosen = tuple[Ranges, list[list[int]]]


def _best(chain: Chain, memory_limit: int) -> _Chosen:
    """The fastest ranges and points of their blocks, or the lightest when nothing fits."""
    mixes, times = Mixes(chain), chain.least_times
    total, most = float(times.sum()), chain.turns - 1
    even = max(total / len(chain.group_of), float(times.max()))
    reach = max(_FEW, 1 + most_items(times, _SLACK * even))
    while True:
        reach = min(reach, chain.longest)
        stage_times = StageTimes(chain, mixes, memory_limit, reach)
        found = fastest_cut(stage_times, chain.crossing, chain.group_of, chain.turns)
        if found is None:
            peak, ranges = lightest_cut(chain)
            if peak > memory_limit:
                return ranges, [
                    lightest_choices(chain, group, first, last)
                    for group, (first, last) in zip(chain.group_of, ranges, strict=True)
                ]
            reach = max(last - first for first, last in ranges)
            continue
        # No faster cut has a longer stage than this.
        needed = most_items(times, (found.objective - total) / most) if most else chain.longest
        if min(needed, chain.longest) <= reach:
            chosen = [
                stage_times.choices(group, first, last)
                for group, (first, last) in zip(chain.group_of, found.ranges, strict=True)
            ]
            return found.ranges, chosen
        reach = needed


def _filled(chain: Chain, ranges: Ranges, memory_limit: int) -> list[list[int]]:
    """Points of the blocks of given stages: the fastest, or the lightest when nothing fits."""
    reach = max(last - first for first, last in ranges)
    times = StageTimes(chain, Mixes(chain), memory_limit, reach)
    spans = [
        (group, first, last) for group, (first, last) in zip(chain.group_of, ranges, strict=True)
    ]
    for span in spans:
        times.make_exact(*span)
    if all(np.isfinite(times.values[g, last - first - 1, first]) for g, first, last in spans):
        return [times.choices(*span) for span in spans]
    return [lightest_choices(chain, *span) for span in spans]
