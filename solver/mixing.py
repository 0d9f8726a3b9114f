"""The fastest mix of points for the blocks of one stage, exactly.

Blocks of a class have the same points, so a mix is a number n[c, p] of blocks of class c at point
p. With weights ``static + in_flight activation`` and every transient at most u, it is a
multiple-choice knapsack:

    min sum n t   over   sum n weight + u <= limit,   sum_p n[c, p] = blocks of c

solved for each transient u that some point has (a *level*), best relaxation first.

The relaxation takes steps along the lower convex hulls of (weight, time) in order of seconds
saved for a byte, and stops inside one that saves r: the *split*. Against it every mix loses
``sum n loss + r unused bytes`` seconds, where a point loses ``t + r weight`` beyond the least of
its class (Dyer 1984; Zemel 1984). Rounding the split down gives a first mix. A better one has
points of smaller losses in sum, which leaves few: they are merged class by class (Pisinger 1995),
keeping what nothing lighter beats, and each merge is completed by as many blocks at the split's
heavier point as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from autoplan.solver.chain import Point

__all__ = ["Mix", "Mixer", "hull_rates"]

_SAME = 1e-13


@dataclass(frozen=True, slots=True)
class Mix:
    """Blocks of each class at each of its points, and the seconds of them all."""

    time: float
    counts: tuple[tuple[int, ...], ...]


class _Option(NamedTuple):
    weight: int
    time: float
    transient: int
    point: int


class _Step(NamedTuple):
    """Along a hull; in order of ``slope``, seconds for a byte, which is negative."""

    slope: float
    block_class: int
    weight: int
    time: float
    reached: _Option


class _Front(NamedTuple):
    """Options of a class with transients of at most ``transient``, ascending in weight."""

    transient: int
    options: list[_Option]
    steps: list[_Step]


class _Partial(NamedTuple):
    """Blocks moved off the relaxation's points: (class, point, blocks) each."""

    loss: float
    weight: int
    moves: tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class _Relaxed:
    """Optimum of a level's relaxation: all blocks at ``base``, then part of the ``split``."""

    bound: float
    unused: int
    base: dict[int, _Option]
    split: _Step | None


class Mixer:
    """Mixes of classes of blocks at a stage with so many microbatches in flight."""

    def __init__(self, classes: Sequence[Sequence[Point]], in_flight: int) -> None:
        self._sizes = [len(points) for points in classes]
        self._fronts = [
            _fronts(block_class, _undominated(points, in_flight))
            for block_class, points in enumerate(classes)
        ]

    def mix(self, counts: Sequence[int], limit: int) -> Mix | None:
        """Fastest mix of ``counts`` blocks of each class in ``limit`` bytes; none if none fits."""
        present = [block_class for block_class, count in enumerate(counts) if count]
        fronts = [self._fronts[block_class] for block_class in present]
        least = max(some[0].transient for some in fronts)
        levels = []
        for transient in sorted({front.transient for some in fronts for front in some}):
            if transient >= least:
                level = {
                    block_class: _highest(some, transient)
                    for block_class, some in zip(present, fronts, strict=True)
                }
                relaxed = _relaxed(level, counts, limit - transient)
                if relaxed is not None:
                    levels.append((relaxed.bound, transient, level, relaxed))
        best, gap = None, float("inf")
        for bound, _, level, relaxed in sorted(levels, key=lambda entry: entry[:2]):
            if best is not None:
                gap = best.time - bound
                if gap <= bound * _SAME:
                    break
            moves = _rounded(level, counts, relaxed, gap)
            if moves is not None:
                best = self._mix(level, counts, relaxed.base, moves)
        return best

    def _mix(
        self,
        level: dict[int, _Front],
        counts: Sequence[int],
        base: dict[int, _Option],
        moves: Sequence[tuple[int, int, int]],
    ) -> Mix:
        blocks = [[0] * size for size in self._sizes]
        for block_class, option in base.items():
            blocks[block_class][option.point] = counts[block_class]
        for block_class, point, count in moves:
            blocks[block_class][base[block_class].point] -= count
            blocks[block_class][point] += count
        time = sum(
            blocks[block_class][option.point] * option.time
            for block_class, front in level.items()
            for option in front.options
        )
        return Mix(time, tuple(map(tuple, blocks)))


def _relaxed(level: dict[int, _Front], counts: Sequence[int], room: int) -> _Relaxed | None:
    base, time = {}, 0.0
    for block_class, front in level.items():
        option = base[block_class] = front.options[0]
        room -= counts[block_class] * option.weight
        time += counts[block_class] * option.time
    if room < 0:
        return None
    for step in sorted([step for front in level.values() for step in front.steps]):
        count = counts[step.block_class]
        if count * step.weight > room:
            return _Relaxed(time + room * step.slope, room, base, step)
        room -= count * step.weight
        time -= count * step.time
        base[step.block_class] = step.reached
    return _Relaxed(time, room, base, None)


def _rounded(
    level: dict[int, _Front], counts: Sequence[int], relaxed: _Relaxed, gap: float
) -> Sequence[tuple[int, int, int]] | None:
    """Moves from ``base`` to the best mix that loses less than ``gap``; none if none does."""
    if relaxed.split is None:
        return ()
    search = _Search(counts, relaxed, relaxed.split, gap)
    partials = [_Partial(0.0, 0, ())]
    search.offer(partials[0], 0)
    for block_class in sorted(level, key=relaxed.split.block_class.__eq__):
        moves = search.moves(block_class, level[block_class].options)
        if moves:
            partials = search.merged(partials, block_class, moves)
    return search.best


class _Search:
    """Rounds one relaxation; ``gap`` is what the best mix so far loses."""

    def __init__(self, counts: Sequence[int], relaxed: _Relaxed, split: _Step, gap: float) -> None:
        self._counts, self._relaxed, self._split = counts, relaxed, split
        self._rate, self._same = -split.slope, relaxed.bound * _SAME
        self._gap = gap
        self.best: tuple[tuple[int, int, int], ...] | None = None

    def moves(self, block_class: int, options: Sequence[_Option]) -> list[tuple[float, int, int]]:
        """(loss, weight, point) of the moves of a block that may be in a better mix."""
        base = self._relaxed.base[block_class]
        skipped = {base.point}
        if block_class == self._split.block_class:
            skipped.add(self._split.reached.point)
        found = []
        for option in options:
            if option.point not in skipped:
                weight = option.weight - base.weight
                loss = max(0.0, option.time - base.time + self._rate * weight)
                if loss < self._gap - self._same:
                    found.append((loss, weight, option.point))
        return sorted(found)

    def merged(
        self,
        partials: Sequence[_Partial],
        block_class: int,
        moves: Sequence[tuple[float, int, int]],
    ) -> list[_Partial]:
        """Each of ``partials`` with each number of blocks moved, without the dominated ones."""
        merged = []
        of_split = block_class == self._split.block_class
        for partial in partials:
            for moved, more in self._several(partial, block_class, moves, 0):
                self.offer(more, moved if of_split else 0)
                merged.append(more)
        merged.sort(key=lambda partial: (partial.weight, partial.loss))
        kept, fastest = [], float("inf")
        for partial in merged:
            time = partial.loss - self._rate * partial.weight
            if time < fastest and partial.loss < self._gap - self._same:
                fastest = time
                kept.append(partial)
        return sorted(kept)

    def _several(
        self,
        partial: _Partial,
        block_class: int,
        moves: Sequence[tuple[float, int, int]],
        moved: int,
    ) -> Iterator[tuple[int, _Partial]]:
        if not moves:
            yield moved, partial
            return
        loss, weight, point = moves[0]
        for count in range(self._counts[block_class] - moved + 1):
            total = partial.loss + count * loss
            if total >= self._gap - self._same:
                break
            taken = ((block_class, point, count),) if count else ()
            more = _Partial(total, partial.weight + count * weight, partial.moves + taken)
            yield from self._several(more, block_class, moves[1:], moved + count)

    def offer(self, partial: _Partial, moved: int) -> None:
        """Complete ``partial``, where ``moved`` blocks of the split's class have gone elsewhere."""
        split = self._split
        unused = self._relaxed.unused - partial.weight
        if unused < 0:
            return
        count = min(unused // split.weight, self._counts[split.block_class] - moved)
        loss = partial.loss + self._rate * (unused - count * split.weight)
        if loss < self._gap:
            self._gap = loss
            taken = ((split.block_class, split.reached.point, count),) if count else ()
            self.best = partial.moves + taken


def hull_rates(points: Sequence[Point], in_flight: int) -> list[float]:
    """Seconds saved for a byte on each step of a class's hull, whatever the transients."""
    front = _fronts(0, _undominated(points, in_flight))[-1]
    return [-step.slope for step in front.steps]


def _undominated(points: Sequence[Point], in_flight: int) -> list[_Option]:
    """Points that no other beats in weight, time and transient, ascending in weight."""
    options = sorted(
        _Option(point.weight(in_flight), point.time, point.transient, index)
        for index, point in enumerate(points)
    )
    kept: list[_Option] = []
    for option in options:
        if all(o.time > option.time or o.transient > option.transient for o in kept):
            kept.append(option)
    return kept


def _fronts(block_class: int, options: Sequence[_Option]) -> list[_Front]:
    """What is left of a class for each transient that its options have, ascending."""
    fronts = []
    for transient in sorted({option.transient for option in options}):
        left: list[_Option] = []
        for option in options:
            if option.transient <= transient and (not left or option.time < left[-1].time):
                left.append(option)
        fronts.append(_Front(transient, left, _hull_steps(block_class, left)))
    return fronts


def _highest(fronts: Sequence[_Front], transient: int) -> _Front:
    """The front for transients of at most ``transient``."""
    return next(front for front in reversed(fronts) if front.transient <= transient)


def _hull_steps(block_class: int, options: Sequence[_Option]) -> list[_Step]:
    """Steps along the lower convex hull, each steeper than the next."""
    hull: list[_Option] = []
    for option in options:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return [
        _Step(_slope(a, b), block_class, b.weight - a.weight, a.time - b.time, b)
        for a, b in pairwise(hull)
    ]


def _slope(light: _Option, heavy: _Option) -> float:
    return (heavy.time - light.time) / (heavy.weight - light.weight)
