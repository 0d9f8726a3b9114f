"""The fastest mix of points for the blocks of one stage, exactly.

Blocks of a class have the same points, so a mix is a number n[c, p] of blocks of class c at point
p. With weights ``static + in_flight activation`` and every transient at most u, it is a
multiple-choice knapsack:

    min sum n t   over   sum n weight + u <= limit,   sum_p n[c, p] = blocks of c

solved for each transient u that some point has (a *level*), best relaxation first.

The relaxation takes steps along the lower convex hulls of (weight, time) in order of seconds
saved for a byte, and stops inside one, the *split* (Dyer 1984; Zemel 1984). What it takes to
round that is found by merging the few points near the hulls (Pisinger 1995): `solver.rounding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.solver.chain import Point
from autoplan.solver.fronts import Front, Option, fronts, highest
from autoplan.solver.rounding import SAME, Moves, Relaxed, least_loss

__all__ = ["Mix", "Mixer"]


@dataclass(frozen=True, slots=True)
class Mix:
    """Blocks of each class at each of its points, and the seconds of them all.

    No mix takes less than ``bound`` seconds, which is ``time`` unless rounding was cut short.
    """

    time: float
    bound: float
    counts: tuple[tuple[int, ...], ...]


class Mixer:
    """Mixes of classes of blocks at a stage with so many microbatches in flight."""

    def __init__(self, classes: Sequence[Sequence[Point]], in_flight: int) -> None:
        self._classes, self._in_flight = classes, in_flight
        self._fronts: dict[int, list[Front]] = {}

    def fronts(self, block_class: int) -> list[Front]:
        """Fronts of a class, the last of all its points."""
        if block_class not in self._fronts:
            points = self._classes[block_class]
            self._fronts[block_class] = fronts(block_class, points, self._in_flight)
        return self._fronts[block_class]

    def mix(self, counts: Sequence[int], limit: int) -> Mix | None:
        """Fastest mix of ``counts`` blocks of each class in ``limit`` bytes; none if none fits."""
        some = {c: self.fronts(c) for c, count in enumerate(counts) if count}
        least = max(found[0].transient for found in some.values())
        levels = []
        for transient in sorted({front.transient for found in some.values() for front in found}):
            if transient >= least:
                level = {c: highest(found, transient) for c, found in some.items()}
                relaxed = _relaxed(level, counts, limit - transient)
                if relaxed is not None:
                    levels.append((relaxed.bound, transient, level, relaxed))
        best, gap, shortest = None, float("inf"), float("inf")
        for bound, _, level, relaxed in sorted(levels, key=lambda entry: entry[:2]):
            if best is not None:
                gap = best.time - bound
                if gap <= bound * SAME:
                    break
            rounded = least_loss(level, counts, relaxed, gap)
            if not rounded.complete:
                shortest = min(shortest, bound)
            if rounded.moves is not None:
                best = self._mix(level, counts, relaxed.base, rounded.moves)
        return best and replace(best, bound=min(best.time, shortest))

    def _mix(
        self,
        level: Mapping[int, Front],
        counts: Sequence[int],
        base: Mapping[int, Option],
        moves: Moves,
    ) -> Mix:
        blocks = [[0] * len(points) for points in self._classes]
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
        return Mix(time, time, tuple(map(tuple, blocks)))


def _relaxed(level: Mapping[int, Front], counts: Sequence[int], room: int) -> Relaxed | None:
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
            return Relaxed(time + room * step.slope, room, base, step)
        room -= count * step.weight
        time -= count * step.time
        base[step.block_class] = step.reached
    return Relaxed(time, room, base, None)
