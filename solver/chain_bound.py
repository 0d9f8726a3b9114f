"""A lower bound on the step of a pipeline before its stages are cut.

Blocks are divided: x[s, c, p] is the share of class c that is at stage s and its point p, t_s the
seconds of a microbatch at stage s, b_s those before it. Ranks r have one or several stages.

    min T   over   sum_{s, p} x[s, c, p] = 1                                    (C1, each class)
                   sum_{s on r, c, p} x (static + held[s] activation)
                       + least transient <= limit                      (C2, each moment of r)
                   b_{s+1} = b_s + t_s                                         (C3, each stage)
                   m sum_{s' >= s on r} t_{s'} + b_s + 2 s send
                       + sum_{s' on stage 0's rank} x once <= T                (C4, each stage)
                   m sum_{s on r} t_s + sum_{s on r} x once <= T                (C5, each rank)

C4 holds for every order with whole backwards, in which stages go round the ranks: what a rank does
at its stages from s on starts when the first microbatch has passed the stages before, and its
gradient goes back through them to stage 0. With one stage a rank it is at most the seconds that
cuts minimise. Where backwards are split, or stages go there and back, only C5 counts.

Blocks are whole, too: of the q that take longest some rank has ``ceil(q / ranks)``, and runs
them for all microbatches. That counts where ranks have few blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoplan.solver.chain import Point
from autoplan.solver.fronts import hull
from autoplan.solver.highs import RepeatedLp
from autoplan.solver.linear import LpModel, Sense, Termination
from autoplan.solver.sweep import SAME

__all__ = ["RankRoom", "relaxed_bound"]

# HiGHS lets a row be violated by 1e-7 of its scale, a step or a stage's bytes.
_TOLERANCE = 1e-5


class RankRoom(NamedTuple):
    """Stages of a rank; microbatches that each holds at some moments, and bytes for them then."""

    stages: tuple[int, ...]
    moments: tuple[tuple[tuple[int, ...], int], ...]


def relaxed_bound(
    classes: Sequence[Sequence[Point]],
    counts: Sequence[int],
    *,
    ranks: Sequence[RankRoom],
    microbatches: int,
    send: float = 0.0,
    once: Sequence[float] = (),
    whole: bool = True,
) -> float:
    """Seconds that no step is below; infinite when no cut fits in memory.

    ``counts`` are blocks of each class, ``send`` is the least seconds of a message between stages.
    A block of a class takes ``once`` seconds more after the last microbatch. ``whole``: backwards
    are, and stages go round the ranks.
    """
    ends = tuple(once) or (0.0,) * len(classes)
    blocks = list(zip(classes, counts, ends, strict=True))
    present = [(points, n, end) for points, n, end in blocks if n]
    fastest = [min(point.time for point in points) for points, n, _ in present for _ in range(n)]
    relaxed = _divided(present, ranks, microbatches, send, whole=whole)
    longest = microbatches * _longest_stage(fastest, len(ranks))
    return max(relaxed, longest * (1 - SAME))


def _longest_stage(times: Sequence[float], stages: int) -> float:
    """Seconds that the longest stage takes for blocks of those times, at least."""
    descending = sorted(times, reverse=True)
    # One more block than k on each stage: some stage has k + 1 of them.
    firsts = range(0, len(times), stages)
    return max(sum(descending[q - q // stages : q + 1]) for q in firsts)


def _divided(
    present: Sequence[tuple[Sequence[Point], int, float]],
    ranks: Sequence[RankRoom],
    microbatches: int,
    send: float,
    *,
    whole: bool,
) -> float:
    """Seconds of the linear program, less what its rows may be violated by."""
    transient = min(point.transient for points, _, _ in present for point in points)
    if min(limit for rank in ranks for _, limit in rank.moments) < transient:
        return math.inf
    # Variables are in [0, 1]: seconds go by those of all blocks, each at its slowest.
    total = sum(n * max(point.time for point in points) for points, n, _ in present)
    total += sum(n * end for _, n, end in present) / microbatches
    stages = sum(len(rank.stages) for rank in ranks)
    most = microbatches * total + 2 * stages * send
    model = LpModel()
    step = model.variable(cost=1.0)
    before = [model.variable() for _ in range(stages + 1)]
    model.row(Sense.EQUAL, 0.0, before[:1], [1.0])
    shares: list[list[int]] = [[] for _ in present]
    tails: list[tuple[list[int], list[float]]] = []
    for rank in ranks:
        parts = [
            _StageShares(model, present, rank, place, total) for place in range(len(rank.stages))
        ]
        for stage, part in zip(rank.stages, parts, strict=True):
            for share, own in zip(shares, part.by_class, strict=True):
                share += own
            row = [*part.own, before[stage], before[stage + 1]]
            model.row(Sense.EQUAL, 0.0, row, [*part.times, 1.0, -1.0])
        everything = [variable for part in parts for variable in part.own]
        for moment, limit in rank.moments:
            weights = [
                weight
                for part, held in zip(parts, moment, strict=True)
                for weight in part.weights(held)
            ]
            largest = max(weights)
            if largest:
                room = (limit - transient) / largest
                model.row(Sense.AT_MOST, room, everything, [w / largest for w in weights])
        tails.append((everything, [end for part in parts for end in part.ends]))
    first = next(index for index, rank in enumerate(ranks) if 0 in rank.stages)
    for rank, (own, ends) in zip(ranks, tails, strict=True):
        _finish(model, rank.stages, microbatches, before, step, most / total, own, ends)
        if not whole:
            continue
        for place, stage in enumerate(rank.stages):
            waited = [before[stage]] if stage else []
            _finish(
                model, rank.stages[place:], microbatches, before, step, most / total,
                *tails[first], waited=waited, bound=-2 * stage * send / total,
            )  # fmt: skip
    for share in shares:
        model.row(Sense.EQUAL, 1.0, share, [1.0] * len(share))
    result = RepeatedLp(model).solve(np.array(model.costs), deadline=math.inf)
    if result.termination is Termination.INFEASIBLE:
        return math.inf
    return result.objective * most * (1 - _TOLERANCE) if result.has_solution else 0.0


def _finish(
    model: LpModel,
    stages: Sequence[int],
    microbatches: int,
    before: Sequence[int],
    step: int,
    scale: float,
    own: Sequence[int],
    ends: Sequence[float],
    *,
    waited: Sequence[int] = (),
    bound: float = 0.0,
) -> None:
    """Row: all microbatches at some stages of a rank, what they waited for and ends, within T."""
    factors: Counter[int] = Counter()
    for stage in stages:
        factors[before[stage + 1]] += microbatches
        factors[before[stage]] -= microbatches
    factors.update(waited)
    variables = [variable for variable, factor in factors.items() if factor]
    model.row(
        Sense.AT_MOST,
        bound,
        [*own, *variables, step],
        [*ends, *(float(factors[variable]) for variable in variables), -scale],
    )


class _StageShares:
    """Variables of a stage: shares of each class at its points."""

    def __init__(
        self,
        model: LpModel,
        present: Sequence[tuple[Sequence[Point], int, float]],
        rank: RankRoom,
        place: int,
        total: float,
    ) -> None:
        self.own: list[int] = []
        self.times: list[float] = []
        self.ends: list[float] = []
        self.by_class: list[list[int]] = []
        self._points: list[tuple[int, Point]] = []
        held = [moment[place] for moment, _ in rank.moments]
        for points, count, end in present:
            chosen = _corners(points, held)
            self.by_class.append([model.variable() for _ in chosen])
            self.own += self.by_class[-1]
            self._points += [(count, point) for point in chosen]
            self.times += [count * point.time / total for point in chosen]
            self.ends += [count * end / total] * len(chosen)

    def weights(self, held: int) -> list[float]:
        """Bytes of each variable when ``held`` microbatches are."""
        return [float(count * point.weight(held)) for count, point in self._points]


def _corners(points: Sequence[Point], held: Sequence[int]) -> list[Point]:
    """Points that some division may need: the others need more than a mixture of these."""
    if len(set(held)) == 1:
        return [points[option.point] for option in hull(points, held[0])]
    if len({point.static for point in points}) == 1:
        return [points[option.point] for option in hull(points, max(held))]
    return list(points)
