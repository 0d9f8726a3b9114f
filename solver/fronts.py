"""What is worth choosing of a class's points: its Pareto fronts and their convex hulls.

With the microbatches in flight given, a point is a weight in bytes that adds up over a stage's
blocks, a time, and a transient of which only a stage's largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from autoplan.solver.chain import Point

__all__ = ["Front", "Option", "Step", "fronts", "highest"]


class Option(NamedTuple):
    """A point that no other of its class beats; ``point`` is its index there."""

    weight: int
    time: float
    transient: int
    point: int


class Step(NamedTuple):
    """From one corner of a class's hull to the next, ``reached``, which is heavier and faster.

    ``slope`` is seconds for a byte, which is negative; the steps of a hull ascend in it.
    """

    slope: float
    block_class: int
    weight: int
    time: float
    reached: Option


class Front(NamedTuple):
    """Options with transients of at most ``transient`` that none beats in weight and time.

    They ascend in weight; ``steps`` go along their lower convex hull.
    """

    transient: int
    options: list[Option]
    steps: list[Step]


def fronts(block_class: int, points: Sequence[Point], in_flight: int) -> list[Front]:
    """What is left of a class for each transient that its points have, ascending."""
    options = _undominated(points, in_flight)
    found = []
    for transient in sorted({option.transient for option in options}):
        left: list[Option] = []
        for option in options:
            if option.transient <= transient and (not left or option.time < left[-1].time):
                left.append(option)
        found.append(Front(transient, left, _hull_steps(block_class, left)))
    return found


def highest(some: Sequence[Front], transient: int) -> Front:
    """The front for transients of at most ``transient``."""
    return next(front for front in reversed(some) if front.transient <= transient)


def _undominated(points: Sequence[Point], in_flight: int) -> list[Option]:
    """Points that no other beats in weight, time and transient, ascending in weight."""
    options = sorted(
        Option(point.weight(in_flight), point.time, point.transient, index)
        for index, point in enumerate(points)
    )
    kept: list[Option] = []
    for option in options:
        if all(o.time > option.time or o.transient > option.transient for o in kept):
            kept.append(option)
    return kept


def _hull_steps(block_class: int, options: Sequence[Option]) -> list[Step]:
    hull: list[Option] = []
    for option in options:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return [
        Step(_slope(a, b), block_class, b.weight - a.weight, a.time - b.time, b)
        for a, b in pairwise(hull)
    ]


def _slope(light: Option, heavy: Option) -> float:
    return (heavy.time - light.time) / (heavy.weight - light.weight)
