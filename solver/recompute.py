"""Least recompute that a memory limit forces, whatever the strategies and the cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Floor", "LevelChoice", "corners", "least_seconds", "room_of_stages"]

Floor = tuple[float, int]
"""Seconds and bytes of a block that no strategies of some level are below."""


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """Copies of a block, and what each may be: seconds for one copy and bytes that it keeps."""

    copies: int
    options: Sequence[Floor]


def least_seconds(choices: Sequence[LevelChoice], room: float) -> float:
    """Least seconds of all blocks that keep at most ``room`` bytes; infinite if none do.

    Copies may be split between levels at will: the linear relaxation of a multiple-choice
    knapsack, whose optimum takes the steps of each class's lower convex hull by seconds for a
    byte saved (Sinha and Zoltners, 1979).
    """
    seconds, excess = 0.0, -float(room)
    steps: list[tuple[float, float, float]] = []
    for choice in choices:
        hull = _hull(choice.options)
        seconds += choice.copies * hull[0][0]
        excess += choice.copies * hull[0][1]
        for (time, size), (later, smaller) in itertools.pairwise(hull):
            added, saved = choice.copies * (later - time), choice.copies * (size - smaller)
            steps.append((added / saved, added, saved))
    for rate, later_seconds, fewer in sorted(steps):
        if excess <= 0:
            return seconds
        seconds += later_seconds if fewer <= excess else rate * excess
        excess -= fewer
    return seconds if excess <= 0 else math.inf


def corners(lines: Sequence[tuple[float, float]], least: int) -> list[Floor]:
    """Extreme points of what keeps at least ``least`` bytes and is above some lines.

    A line says that seconds and the bytes times its first number are at least its second.

    >>> corners([(0.0, 1.0), (0.5, 6.0)], 4)
    [(1.0, 10), (4.0, 4)]
    """
    slopes = sorted(lines)

    def seconds(size: float) -> float:
        return max(bound - slope * size for slope, bound in slopes)

    crossings = {
        (second[1] - first[1]) / (second[0] - first[0])
        for first, second in itertools.combinations(slopes, 2)
        if second[0] > first[0]
    }
    # Rounded down only in bytes, or points between two of them would be above the lines.
    sizes = {float(least), *(size for size in crossings if size > least)}
    return [(seconds(size), math.floor(size)) for size in sorted(sizes, reverse=True)]


def _hull(points: Sequence[Floor]) -> list[Floor]:
    """Lower convex hull in (seconds, bytes), from the fastest to the leanest."""
    hull: list[Floor] = []
    for time, size in sorted(points):
        if hull and size >= hull[-1][1]:
            continue
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], (time, size)):
            hull.pop()
        hull.append((time, size))
    return hull


def _slope(first: Floor, second: Floor) -> float:
    """Seconds for a byte saved."""
    return (second[0] - first[0]) / (first[1] - second[1])


def room_of_stages(limit: float, state: float, in_flight: Sequence[int]) -> float:
    """Most bytes that a microbatch can leave in all stages together, negative if none.

    Stage s holds its part of the training ``state`` and ``in_flight[s]`` microbatches within
    ``limit`` bytes. State costs least room where most microbatches are in flight.
    """
    room, left = 0.0, state
    for flight in sorted(in_flight, reverse=True):
        here = min(left, limit)
        left -= here
        room += (limit - here) / flight
    return -1.0 if left > 0 else room
