"""Tandem repeats in a sequence of operators: layers that no list of modules names.

Operator ``i`` matches operator ``i + p`` when both are the same call on tensors of the same
shapes, wired alike: each input comes from producers ``p`` apart, or from the same tensor.
Where ``p`` operators in a row match, two units of period ``p`` follow each other. A dynamic
program over the positions chooses disjoint runs of two or more units with, in this order,
the most work covered, the most units, and the fewest tensors crossing their ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

__all__ = ["Repeat", "Step", "find_repeats"]

Score = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One operator: ``token`` says what it is, ``links`` where its inputs come from.

    A link is the position of the producer, or a negative number for a tensor from outside
    the sequence (the same number, the same tensor); parameters have none.
    """

    token: int
    links: tuple[int, ...]
    work: int
    has_parameter: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """``count`` equal units of ``period`` operators from ``start``."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """Position after the last unit."""
        return self.start + self.period * self.count


def find_repeats(
    steps: Sequence[Step], widths: Sequence[int], *, max_width: int
) -> tuple[Repeat, ...]:
    """Disjoint repeats in order. ``widths[i]``: tensors that cross before operator ``i``.

    Each unit has a parameter, and at most ``max_width`` tensors cross its ends.
    """
    count = len(steps)
    work = [0, *accumulate(step.work for step in steps)]
    owned = [0, *accumulate(int(step.has_parameter) for step in steps)]
    ends = _ends(steps, [width <= max_width for width in widths])
    best: list[Score] = [(0, 0, 0)]
    choice: list[Repeat | None] = [None]
    chains: dict[tuple[int, int], tuple[Score, int]] = {}
    for end in range(1, count + 1):
        score, chosen = best[end - 1], None
        for period in ends.get(end, ()):
            unit, pair = end - period, end - 2 * period
            if owned[end] == owned[unit]:
                continue
            chain = (_sum(best[pair], work[end] - work[pair], 2, widths[pair] + widths[unit]), 2)
            longer = chains.get((unit, period))
            if longer is not None:
                total = _sum(longer[0], work[end] - work[unit], 1, widths[unit])
                if total >= chain[0]:
                    chain = (total, longer[1] + 1)
            chains[end, period] = chain
            if chain[0] > score:
                score, chosen = chain[0], Repeat(end - period * chain[1], period, chain[1])
        best.append(score)
        choice.append(chosen)
    found: list[Repeat] = []
    end = count
    while end:
        repeat = choice[end]
        if repeat is None:
            end -= 1
        else:
            found.append(repeat)
            end = repeat.start
    return tuple(reversed(found))


def _sum(score: Score, work: int, units: int, width: int) -> Score:
    return score[0] + work, score[1] + units, score[2] - width


def _ends(steps: Sequence[Step], allowed: Sequence[bool]) -> dict[int, list[int]]:
    """Periods of the pairs of units that end at each position, where all three cuts may be."""
    count = len(steps)
    cut = np.array(allowed, dtype=bool)
    slots = max((len(step.links) for step in steps), default=0)
    tokens = np.array([step.token for step in steps], dtype=np.int64)
    # A slot that is not there matches only itself.
    absent = np.iinfo(np.int64).min
    links = np.full((slots, count), absent, dtype=np.int64)
    for index, step in enumerate(steps):
        links[: len(step.links), index] = step.links
    found: dict[int, list[int]] = {}
    for period in range(1, count // 2 + 1):
        match = tokens[period:] == tokens[:-period]
        if not match.any():
            continue
        for row in links:
            near, far = row[period:], row[:-period]
            match &= (near == far) | ((near - far == period) & (far >= 0))
        run = _run_lengths(match)
        stops = np.arange(2 * period, count + 1)
        good = run[stops - period - 1] >= period
        good &= cut[stops] & cut[stops - period] & cut[stops - 2 * period]
        for stop in stops[good].tolist():
            found.setdefault(stop, []).append(period)
    return found


def _run_lengths(match: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number of true values in a row that end at each position."""
    positions = np.arange(1, len(match) + 1)
    last_false = np.maximum.accumulate(np.where(match, 0, positions))
    return positions - last_false
