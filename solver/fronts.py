"""What is worth choosing of a class's points: its Pareto fronts and their convex hulls.

With the microbatches in flight given, a point is a weight in bytes that adds up over a stage's
blocks, a time, and a transient of which only a stage's largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from autoplan.solver.chain import Point

__all__ = ["Front", "Option", "Step", "fronts", "highest", "hull"]


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
        left = _pareto([option for option in options if option.transient <= transient])
        found.append(Front(transient, left, _hull_steps(block_class, left)))
    return found


def hull(points: Sequence[Point], in_flight: int) -> list[Option]:
    """Corners of the lower convex hull of weight and time, whatever the transients, ascending."""
    return _hull(_pareto(_options(points, in_flight)))


def highest(some: Sequence[Front], transient: int) -> Front:
    """The front for transients of at most ``transient``."""
    return next(front for front in reversed(some) if front.transient <= transient)


def _options(points: Sequence[Point], in_flight: int) -> list[Option]:
    return sorted(
        Option(point.weight(in_flight), point.time, point.transient, index)
        for index, point in enumerate(points)
    )


def _undominated(points: Sequence[Point], in_flight: int) -> list[Option]:
    """Points that no other beats in weight, time and transient, ascending in weight."""
    kept: list[Option] = []
    for option in _options(points, in_flight):
        if all(o.time > option.time or o.transient > option.transient for o in kept):
            kept.append(option)
    return kept


def _pareto(options: Sequence[Option]) -> list[Option]:
    """Options that no other beats in weight and time; they come ascending in weight."""
    kept: list[Option] = []
    for option in options:
        if not kept or option.time < kept[-1].time:
            kept.append(option)
    return kept


def _hull(options: Sequence[Option]) -> list[Option]:
    corners: list[Option] = []
    for option in options:
        while len(corners) > 1 and _slope(*corners[-2:]) >= _slope(corners[-1], option):
            corners.pop()
        corners.append(option)
    return corners


def _hull_steps(block_class: int, options: Sequence[Option]) -> list[Step]:
    return [
        Step(_slope(a, b), block_class, b.weight - a.weight, a.time - b.time, b)
        for a, b in pairwise(_hull(options))
    ]


def _slope(light: Option, heavy: Option) -> float:
    return (heavy.time - light.time) / (heavy.weight - light.weight)
