"""The fastest mix of points for the blocks of one stage, exactly.

Blocks of a class have the same points, so a mix is a number n[c, p] of blocks of class c at point
p. With weights ``static + in_flight activation`` and every transient at most u, it is a
multiple-choice knapsack:

    min sum n t   over   sum n weight + u <= limit,   sum_p n[c, p] = blocks of c

solved for each transient u that some point has (a *level*), best relaxation first.

The relaxation takes steps along the lower convex hulls of (weight, time) in order of seconds
saved for a byte, and stops inside one, of rate r: the *split*. Against it every mix loses
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

__all__ = ["Mix", "Mixer"]

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
    rate: float
    weight: int
    time: float
    block_class: int
    reached: _Option


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
    base: list[_Option]
    split: _Step | None


class Mixer:
    """Mixes of classes of blocks at a stage with so many microbatches in flight."""

    def __init__(self, classes: Sequence[Sequence[Point]], in_flight: int) -> None:
        self._sizes = [len(points) for points in classes]
        self._classes = [_undominated(points, in_flight) for points in classes]
        self._levels: dict[tuple[int, ...], list[_Level]] = {}
        steps = [_hull_steps(c, _pareto(options)) for c, options in enumerate(self._classes)]
        self.rates = sorted({step.rate for some in steps for step in some})

    def mix(self, counts: Sequence[int], limit: int) -> Mix | None:
        """Fastest mix of ``counts`` blocks of each class in ``limit`` bytes; none if none fits."""
        present = tuple(index for index, count in enumerate(counts) if count)
        if present not in self._levels:
            self._levels[present] = _levels(self._classes, present)
        relaxed = []
        for order, level in enumerate(self._levels[present]):
            found = level.relaxed(counts, limit)
            if found is not None:
                relaxed.append((found.bound, order, level, found))
        best = None
        for bound, _, level, found in sorted(relaxed, key=lambda entry: entry[:2]):
            if best is not None and bound >= best.time * (1 - _SAME):
                break
            gap = float("inf") if best is None else best.time - bound
            moves = level.rounded(counts, found, gap)
            if moves is not None:
                best = self._mix(counts, found.base, moves)
        return best

    def _mix(
        self, counts: Sequence[int], base: Sequence[_Option], moves: Sequence[tuple[int, int, int]]
    ) -> Mix:
        blocks = [[0] * size for size in self._sizes]
        for row, option, count in zip(blocks, base, counts, strict=True):
            row[option.point] = count
        for block_class, point, count in moves:
            blocks[block_class][base[block_class].point] -= count
            blocks[block_class][point] += count
        times = {(c, o.point): o.time for c, options in enumerate(self._classes) for o in options}
        time = sum(
            count * times[block_class, point]
            for block_class, row in enumerate(blocks)
            for point, count in enumerate(row)
            if count
        )
        return Mix(time, tuple(map(tuple, blocks)))


class _Level:
    """The points whose transient is at most ``transient``, of the classes that are present."""

    def __init__(
        self, classes: Sequence[Sequence[_Option]], present: Sequence[int], transient: int
    ) -> None:
        self.transient = transient
        self._present = present
        self._leanest = [options[0] for options in classes]
        self._options: dict[int, list[_Option]] = {}
        steps = []
        for block_class in present:
            options = _pareto([o for o in classes[block_class] if o.transient <= transient])
            self._options[block_class] = options
            self._leanest[block_class] = options[0]
            steps += _hull_steps(block_class, options)
        self._steps = sorted(steps, key=lambda step: (-step.rate, step.block_class))

    def relaxed(self, counts: Sequence[int], limit: int) -> _Relaxed | None:
        base = list(self._leanest)
        unused = limit - self.transient
        time = 0.0
        for block_class in self._present:
            unused -= counts[block_class] * base[block_class].weight
            time += counts[block_class] * base[block_class].time
        if unused < 0:
            return None
        for step in self._steps:
            count = counts[step.block_class]
            if count * step.weight > unused:
                return _Relaxed(time - unused * step.rate, unused, base, step)
            unused -= count * step.weight
            time -= count * step.time
            base[step.block_class] = step.reached
        return _Relaxed(time, unused, base, None)

    def rounded(
        self, counts: Sequence[int], relaxed: _Relaxed, gap: float
    ) -> Sequence[tuple[int, int, int]] | None:
        """Moves from ``base`` to the best mix that loses less than ``gap``; none if none does."""
        if relaxed.split is None:
            return ()
        search = _Search(counts, relaxed, relaxed.split, gap, relaxed.bound * _SAME)
        search.offer(_Partial(0.0, 0, ()), 0)
        last = relaxed.split.block_class
        partials = [_Partial(0.0, 0, ())]
        for block_class in (*(c for c in self._present if c != last), last):
            moves = search.moves(block_class, self._options[block_class])
            if moves:
                partials = search.merged(partials, block_class, moves)
        return search.best


class _Search:
    """Rounds one relaxation; ``gap`` is what the best mix so far loses."""

    def __init__(
        self, counts: Sequence[int], relaxed: _Relaxed, split: _Step, gap: float, same: float
    ) -> None:
        self._counts, self._relaxed, self._split = counts, relaxed, split
        self.gap, self._same = gap, same
        self.best: tuple[tuple[int, int, int], ...] | None = None

    def moves(self, block_class: int, options: Sequence[_Option]) -> list[tuple[float, int, int]]:
        """(loss, weight, point) of the moves of a block that may be in a better mix."""
        rate, base = self._split.rate, self._relaxed.base[block_class]
        skipped = {base.point}
        if block_class == self._split.block_class:
            skipped.add(self._split.reached.point)
        found = []
        for option in options:
            if option.point not in skipped:
                weight = option.weight - base.weight
                loss = max(0.0, option.time - base.time + rate * weight)
                if loss < self.gap - self._same:
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
        rate, kept, fastest = self._split.rate, [], float("inf")
        for partial in merged:
            time = partial.loss - rate * partial.weight
            if time < fastest and partial.loss < self.gap - self._same:
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
            if total >= self.gap - self._same:
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
        loss = partial.loss + split.rate * (unused - count * split.weight)
        if loss < self.gap:
            self.gap = loss
            taken = ((split.block_class, split.reached.point, count),) if count else ()
            self.best = partial.moves + taken


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


def _pareto(options: Sequence[_Option]) -> list[_Option]:
    """Options that no other beats in weight and time; they come ascending in weight."""
    kept: list[_Option] = []
    for option in options:
        if not kept or option.time < kept[-1].time:
            kept.append(option)
    return kept


def _hull_steps(block_class: int, options: Sequence[_Option]) -> list[_Step]:
    """Steps along the lower convex hull, each of a lower rate than the one before."""
    hull: list[_Option] = []
    for option in options:
        while len(hull) > 1 and _rate(hull[-2], hull[-1]) <= _rate(hull[-1], option):
            hull.pop()
        hull.append(option)
    return [
        _Step(_rate(a, b), b.weight - a.weight, a.time - b.time, block_class, b)
        for a, b in pairwise(hull)
    ]


def _rate(light: _Option, heavy: _Option) -> float:
    """Seconds saved for a byte."""
    return (light.time - heavy.time) / (heavy.weight - light.weight)


def _levels(classes: Sequence[Sequence[_Option]], present: Sequence[int]) -> list[_Level]:
    if not present:
        return []
    least = max(min(option.transient for option in classes[c]) for c in present)
    transients = {option.transient for c in present for option in classes[c]}
    return [_Level(classes, present, t) for t in sorted(transients) if t >= least]
