"""Least seconds of each span of blocks at each stage within a memory limit, found lazily.

Entries start as lower bounds: infinite where even the lightest points do not fit, exact where
the fastest do, and in between the best of some Lagrangian bounds

    sum min_p (t + rate weight) - rate (limit - fixed - least transient)

With the rates of all steps of the classes' convex hulls that is the linear relaxation. A span
that a cut wants is then mixed exactly, at once for all that are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.solver.chain import Chain, Point
from autoplan.solver.mixing import Mix, Mixer
from autoplan.solver.spans import inside, span_maxima, span_sums

__all__ = ["Mixes", "StageTimes"]

_RATE_CLASSES = 6
_MOST_RATES = 12


class Mixes:
    """Fastest mixes of blocks at the stages of a chain, each found once."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._mixers = [Mixer(chain.classes, flight) for flight in chain.flights]
        self._found: dict[tuple[int, int, tuple[int, ...]], Mix | None] = {}

    def of(self, group: int, first: int, last: int, room: int) -> Mix | None:
        """Fastest mix of items first..last-1 in so many bytes, besides the fixed ones."""
        counts = tuple((self._chain.counts[last] - self._chain.counts[first]).tolist())
        key = (group, room, counts)
        if key not in self._found:
            self._found[key] = self._mixers[group].mix(counts, room)
        return self._found[key]

    def rates(self, group: int, block_class: int) -> list[float]:
        """Seconds saved for a byte on each step of a class's hull, whatever the transients."""
        front = self._mixers[group].fronts(block_class)[-1]
        return [-step.slope for step in front.steps]


class StageTimes:
    """``values`` [group, l, i] in seconds, lower bounds until they are made exact.

    Spans have up to ``reach`` items.
    """

    def __init__(self, chain: Chain, mixes: Mixes, memory_limit: int, reach: int) -> None:
        self._chain, self._mixes = chain, mixes
        self._room = memory_limit - chain.fixed(reach)
        self._fastest = np.lexsort((chain.transient, chain.times))[:, 0]
        chosen = np.arange(len(chain.classes)), self._fastest
        wanted = span_sums(chain.of_items(chain.weights()[:, *chosen]), reach)
        wanted += span_maxima(chain.of_items(chain.transient[chosen]), reach)
        self._plenty = wanted <= self._room
        time = span_sums(chain.least_times, reach)
        time[~inside(len(chain.items), reach)] = np.inf
        self.values = np.where(self._plenty, time, np.inf)
        self._exact = np.ones_like(self._plenty)
        if not (chain.single or self._plenty.all()):
            self._add_bounds(time, reach)

    def _add_bounds(self, time: NDArray[np.float64], reach: int) -> None:
        chain, weights = self._chain, self._chain.weights()
        room = self._room - span_maxima(chain.of_items(chain.transient.min(axis=1)), reach)
        lightest = span_sums(chain.of_items(weights.min(axis=2)), reach)
        unknown = (lightest <= room) & ~self._plenty
        self._exact = ~unknown
        bounds = np.broadcast_to(time, self.values.shape).copy()
        for rate in self._rates().T[..., None, None]:
            priced = (chain.times + rate * weights).min(axis=2)
            bound = span_sums(chain.of_items(priced), reach)
            bound -= rate * room
            np.maximum(bounds, bound, out=bounds)
        np.copyto(self.values, bounds, where=unknown)

    def _rates(self) -> NDArray[np.float64]:
        """Seconds saved for a byte [group, rate], by the classes with the most blocks."""
        blocks = Counter(self._chain.class_of.tolist())
        common = [block_class for block_class, _ in blocks.most_common(_RATE_CLASSES)]
        found = [
            sorted({rate for c in common for rate in self._mixes.rates(group, c)})
            for group in range(len(self._chain.flights))
        ]
        most = min(_MOST_RATES, max(map(len, found)))
        return np.array([_spread(rates or [0.0], most) for rates in found])

    def make_exact(self, group: int, first: int, last: int) -> bool:
        """Mix items first..last-1, and all spans alike, exactly; false when they were."""
        length = last - first
        if self._exact[group, length - 1, first]:
            return False
        rooms = self._room[group, length - 1]
        mix = self._mixes.of(group, first, last, int(rooms[first]))
        blocks = self._chain.counts[length:] - self._chain.counts[:-length]
        alike = np.zeros(len(rooms), dtype=bool)
        alike[: len(blocks)] = (blocks == blocks[first]).all(axis=1)
        alike &= rooms == rooms[first]
        self.values[group, length - 1, alike] = np.inf if mix is None else mix.time
        self._exact[group, length - 1, alike] = True
        return True

    def choices(self, group: int, first: int, last: int) -> list[int]:
        """Points of the blocks of a range in its fastest mix; of a class, the lightest first.

        A rank holds most in the backward of its last blocks, which those before them have all
        kept something for: there recompute would add the most.
        """
        span = (group, last - first - 1, first)
        classes = self._chain.class_of[first:last].tolist()
        if self._plenty[span]:
            return [int(self._fastest[block_class]) for block_class in classes]
        mix = self._mixes.of(group, first, last, int(self._room[span]))
        assert mix is not None, "the range fits"
        flight = self._chain.flights[group]
        points = [
            iter([p for p in _lightest_first(choices, flight) for _ in range(counts[p])])
            for choices, counts in zip(self._chain.classes, mix.counts, strict=True)
        ]
        return [next(points[block_class]) for block_class in classes]


def _lightest_first(points: Sequence[Point], flight: int) -> list[int]:
    return sorted(range(len(points)), key=lambda p: (points[p].weight(flight), p))


def _spread(rates: Sequence[float], number: int) -> list[float]:
    """So many of the rates, evenly by rank."""
    return [rates[(2 * rank + 1) * len(rates) // (2 * number)] for rank in range(number)]
