"""Rounding the relaxation of a mix of points: see `solver.mixing`.

Against the relaxation, whose split saves r seconds for a byte, every mix loses
``sum n loss + r unused bytes`` seconds, where a point loses ``t + r weight`` beyond the least of
its class. Rounding the split down gives a first mix. A better one has points of smaller losses
in sum, which leaves few: they are merged class by class, keeping what nothing lighter beats, and
each merge is completed by as many blocks at the split's heavier point as fit.

Where a dozen classes save nearly as much for a byte as the split, too many merges are as good;
after 10000 of them the best so far is taken, which loses less than one block's step of the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoplan.solver.fronts import Front, Option, Step

__all__ = ["SAME", "Moves", "Relaxed", "Rounded", "least_loss"]

SAME = 1e-13
"""Relative difference of seconds that is rounding."""

_MOST = 10_000

Moves = tuple[tuple[int, int, int], ...]
"""Blocks moved off the relaxation's points: (class, point, blocks) each."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Optimum of a relaxation, of ``bound`` seconds.

    All blocks are at the ``base`` of their class, and part of the ``split`` takes the ``unused``
    bytes that this leaves.
    """

    bound: float
    unused: int
    base: dict[int, Option]
    split: Step | None


class Rounded(NamedTuple):
    """``moves`` from the base to a mix; without ``complete`` there may be a better one."""

    moves: Moves | None
    complete: bool


def least_loss(
    fronts: Mapping[int, Front], counts: Sequence[int], relaxed: Relaxed, gap: float
) -> Rounded:
    """The best mix that loses less than ``gap``; none if none does.

    ``fronts`` are by class, of those that have blocks; ``counts`` are blocks of every class.
    """
    if relaxed.split is None:
        return Rounded((), complete=True)
    search = _Search(counts, relaxed, relaxed.split, gap)
    partials = [_Partial(0.0, 0, ())]
    search.offer(partials[0], 0)
    last = relaxed.split.block_class
    for block_class in (*(c for c in fronts if c != last), last):
        moves = search.moves(block_class, fronts[block_class].options)
        if moves:
            partials = search.merged(partials, block_class, moves)
    return Rounded(search.best, complete=search.offers < _MOST)


class _Partial(NamedTuple):
    loss: float
    weight: int
    moves: Moves


class _Search:
    """Rounds one relaxation; ``best`` is the moves to the best of so many ``offers``."""

    def __init__(self, counts: Sequence[int], relaxed: Relaxed, split: Step, gap: float) -> None:
        self._counts, self._relaxed, self._split = counts, relaxed, split
        self._rate, self._same = -split.slope, relaxed.bound * SAME
        self._gap = gap
        self.best: Moves | None = None
        self.offers = 0

    def moves(self, block_class: int, options: Sequence[Option]) -> list[tuple[float, int, int]]:
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
                if self.offers >= _MOST:
                    return []
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
        self.offers += 1
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
