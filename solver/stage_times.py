"""Least seconds of each range of blocks at each stage within a memory limit, found lazily.

A table over ranges starts with lower bounds: infinite where even the lightest points do not
fit, exact where the fastest do, and in between the best of some Lagrangian bounds

    sum min_p (t + rate weight) - rate (limit - fixed - least transient)

whose rates are those of the steps of the classes' convex hulls, so that it is the linear
relaxation. A range that a cut wants is then mixed exactly, at once for all that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.solver.chain import Chain, Point, range_maxima, range_sums
from autoplan.solver.mixing import Mix, Mixer

__all__ = ["StageTimes"]

_MOST_RATES = 12


class StageTimes:
    """``bounds`` [group, i, k] in seconds, ``exact`` where they are the least seconds."""

    def __init__(self, chain: Chain, memory_limit: int) -> None:
        self._chain = chain
        self._mixers = [Mixer(chain.classes, flight) for flight in chain.flights]
        self._mixes: dict[tuple[int, int, tuple[int, ...]], Mix | None] = {}
        self._rooms = memory_limit - chain.fixed
        fastest = [min(points, key=lambda p: p.time) for points in chain.classes]
        time = range_sums(chain.of_items([point.time for point in fastest]))
        self.bounds = np.broadcast_to(time, self._rooms.shape).copy()
        self.exact = np.zeros(self._rooms.shape, dtype=bool)
        for group in range(len(chain.flights)):
            self._bound(group)
        ends = np.arange(len(time))
        self.bounds[:, ends[:, None] >= ends[None, :]] = np.inf

    def _bound(self, group: int) -> None:
        chain, flight, room = self._chain, self._chain.flights[group], self._rooms[group]
        leanest = _weights([_lightest(points, flight) for points in chain.classes], flight)
        smallest = [min(point.transient for point in points) for points in chain.classes]
        transient = range_maxima(chain.of_items(smallest))
        needed = range_sums(chain.of_items(leanest)) + transient
        fastest = [_fastest(points, flight) for points in chain.classes]
        wanted = range_sums(chain.of_items(_weights(fastest, flight)))
        wanted += range_maxima(chain.of_items([point.transient for point in fastest]))
        self.exact[group] = (wanted <= room) | (needed > room)
        bounds = self.bounds[group]
        for rate in _spread(self._mixers[group].rates):
            priced = [min(p.time + rate * p.weight(flight) for p in ps) for ps in chain.classes]
            bound = range_sums(chain.of_items(priced)) - rate * (room - transient)
            np.maximum(bounds, bound, out=bounds, where=~self.exact[group])
        bounds[needed > room] = np.inf

    def make_exact(self, group: int, first: int, last: int) -> None:
        """Mix the range, and all with the same blocks and as many bytes, exactly."""
        mix = self.mix(group, first, last)
        counts = self._chain.counts
        alike = self._rooms[group] == self._rooms[group, first, last]
        for row, count in zip(counts.T, counts[last] - counts[first], strict=True):
            alike &= row[None, :] - row[:, None] == count
        self.bounds[group][alike] = np.inf if mix is None else mix.time
        self.exact[group] |= alike

    def choices(self, group: int, first: int, last: int) -> list[int]:
        """Points of the blocks of a range in its fastest mix; of a class, lower indices first."""
        mix = self.mix(group, first, last)
        assert mix is not None, "the range fits"
        points = [
            iter([index for index, count in enumerate(counts) for _ in range(count)])
            for counts in mix.counts
        ]
        return [next(points[block_class]) for block_class in self._chain.class_of[first:last]]

    def mix(self, group: int, first: int, last: int) -> Mix | None:
        """Fastest mix of a range."""
        counts = tuple((self._chain.counts[last] - self._chain.counts[first]).tolist())
        room = int(self._rooms[group, first, last])
        key = (group, room, counts)
        if key not in self._mixes:
            self._mixes[key] = self._mixers[group].mix(counts, room)
        return self._mixes[key]


def _weights(points: Sequence[Point], flight: int) -> list[int]:
    return [point.weight(flight) for point in points]


def _lightest(points: Sequence[Point], flight: int) -> Point:
    return min(points, key=lambda p: p.weight(flight))


def _fastest(points: Sequence[Point], flight: int) -> Point:
    return min(points, key=lambda p: (p.time, p.weight(flight), p.transient))


def _spread(rates: Sequence[float]) -> Sequence[float]:
    """At most so many of them, evenly by rank."""
    if len(rates) <= _MOST_RATES:
        return rates
    ranks = np.linspace(0, len(rates) - 1, _MOST_RATES).round().astype(int)
    return [rates[rank] for rank in ranks]
