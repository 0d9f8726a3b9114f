"""Actions in segments: one for each unit of the stage, with the collectives around it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.ir.buckets import BucketedBlock, buckets
from autoplan.ir.overlap import overlapped_time
from autoplan.schedules import Action, ActionKind
from autoplan.simulate.costs import DataParallel, Gathering, Reduction, StageCost, UnitCost

__all__ = ["Segment", "Segments", "side_by_side"]

_EXACT = 1e-12  # relative difference of moments that are one, rounding aside


@dataclass(frozen=True, slots=True)
class Segment:
    """A unit's part in an action, in seconds: a gather before it, a reduction after it."""

    unit: int
    compute: float
    exposed: float
    gather: float
    reduce: float


class Segments:
    """Segments of a rank's actions, asked for in the order in which the rank runs them."""

    def __init__(self, stages: Sequence[StageCost], microbatches: int, data: DataParallel) -> None:
        self._stages = stages
        self._data = data
        self._left: Counter[int] = Counter({s: microbatches for s in range(len(stages))})
        self._gathered: set[int] = set()
        self._turned: set[int] = set()
        self._made: dict[tuple[int, ActionKind, bool, bool], tuple[Segment, ...]] = {}

    def of(self, action: Action) -> tuple[Segment, ...]:
        """Segments of the next action; backwards take the units from the last to the first."""
        stage, kind = action.stage, action.kind
        gathering = self._data.gathering
        gather = gathering is Gathering.ACTION or (
            gathering is Gathering.FORWARD and kind is ActionKind.FORWARD
        )
        if gathering is Gathering.STEP and stage not in self._gathered:
            self._gathered.add(stage)
            gather = True
        if gathering is Gathering.TURN:
            gather = stage not in self._turned
            if kind is ActionKind.FORWARD:
                self._turned.discard(stage)
            else:
                self._turned.add(stage)
        reduce = False
        if kind is ActionKind.BACKWARD or kind is ActionKind.BACKWARD_WEIGHT:
            self._left[stage] -= 1
            reduce = self._data.reduction is Reduction.EACH or not self._left[stage]
        key = stage, kind, gather, reduce
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(*key)
        return made

    def gather_of(self, stage: int) -> float:
        """Seconds to gather all units of a stage."""
        return sum(unit.gather for unit in self._stages[stage].units)

    def _make(
        self, stage: int, kind: ActionKind, gather: bool, reduce: bool
    ) -> tuple[Segment, ...]:
        units = list(enumerate(self._stages[stage].units))
        if kind is not ActionKind.FORWARD:
            units.reverse()
        together = reduce and self._data.reduction is Reduction.STAGE
        if reduce and self._data.reduction is Reduction.LAST and any(u.reduced for _, u in units):
            return _in_buckets(units, kind)
        segments = []
        for place, (index, unit) in enumerate(units):
            sent = unit.reduce if reduce and not together else 0.0
            if together and place == len(units) - 1:
                sent = sum(other.reduce for _, other in units)
            work = unit.work[kind]
            segments.append(
                Segment(
                    unit=index if len(units) > 1 else -1,
                    compute=work.compute,
                    exposed=work.exposed,
                    gather=unit.gather if gather else 0.0,
                    reduce=sent,
                )
            )
        return tuple(segments)


def _in_buckets(units: Sequence[tuple[int, UnitCost]], kind: ActionKind) -> tuple[Segment, ...]:
    """Segments of a last backward, whose gradients DDP reduces: units end where buckets do too."""
    works = [unit.work[kind] for _, unit in units]
    blocks = [
        BucketedBlock(work.compute + work.exposed, unit.reduced, unit.reduce)
        for work, (_, unit) in zip(works, units, strict=True)
    ]
    waiting = deque(buckets(blocks))
    segments = []
    done = 0.0
    for work, block, (index, _) in zip(works, blocks, units, strict=True):
        end = done + block.backward
        left = 1.0
        number = index if len(units) > 1 else -1
        while left:
            last = not waiting or waiting[0][0] >= end * (1 - _EXACT)
            share = left if last else min(left, (waiting[0][0] - done) / block.backward)
            done = end if last else waiting[0][0]
            reduce = 0.0
            while waiting and waiting[0][0] <= done * (1 + _EXACT):
                reduce += waiting.popleft()[1]
            segments.append(
                Segment(number, share * work.compute, share * work.exposed, 0.0, reduce)
            )
            left = 0.0 if last else left - share
    return tuple(segments)


def side_by_side(
    forward: Sequence[Segment], backward: Sequence[Segment], data: DataParallel
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Segments of a pair whose collectives each hide behind the other's kernels.

    The kernels run one after another, evenly stretched by the slow-down, and what nothing hides
    of the collectives comes last; what is hidden has no event. The pair is never faster than
    either of its two alone.
    """
    both = (*forward, *backward)
    compute = sum(s.compute for s in both)
    network = sum(s.exposed for s in both)
    if not network or not compute:
        return tuple(forward), tuple(backward)
    alone = max(
        sum(s.compute + s.exposed for s in forward), sum(s.compute + s.exposed for s in backward)
    )
    seconds = max(
        alone,
        overlapped_time(compute, network, data.compute_slow_down, data.network_slow_down),
    )
    hidden = min(network, compute * data.compute_slow_down / data.network_slow_down)
    slowed = hidden * data.network_slow_down
    stretched = compute + slowed - slowed / data.compute_slow_down
    scale = stretched / compute
    bare = [Segment(s.unit, s.compute * scale, 0.0, s.gather, s.reduce) for s in both]
    last = bare[-1]
    bare[-1] = Segment(
        last.unit, last.compute, max(0.0, seconds - stretched), last.gather, last.reduce
    )
    return tuple(bare[: len(forward)]), tuple(bare[len(forward) :])
