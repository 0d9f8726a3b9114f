"""A curve drawn in text: points on two axes, each linear or logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Axis", "Dot", "curve_lines"]

_HEIGHT = 9
_MARGIN = 12


@dataclass(frozen=True, slots=True)
class Dot:
    """A point and its sign; without ``y`` it is drawn on the axis itself."""

    x: float
    y: float | None
    sign: str


@dataclass(frozen=True, slots=True)
class Axis:
    """From the least value to the greatest; equal distances are equal ratios if ``log``."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float, cells: int) -> int:
        """Cell of a value, the first for the least.

        >>> Axis(1.0, 16.0, log=True).place(4.0, 9), Axis(0.0, 8.0).place(4.0, 9)
        (4, 4)
        """
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round((at - low) / (high - low) * (cells - 1)) if high > low else 0


def curve_lines(
    dots: Sequence[Dot],
    x: Axis,
    y: Axis,
    *,
    width: int,
    x_ends: tuple[str, str],
    y_ends: tuple[str, str],
) -> list[str]:
    """Lines of the drawing, at most ``width`` wide; ends are texts of the least and greatest.

    Of dots in the same place the first is drawn.
    """
    columns = width - _MARGIN - 3
    grid = [[" "] * columns for _ in range(_HEIGHT)]
    floor = ["-"] * columns
    for dot in reversed(dots):
        row = floor if dot.y is None else grid[_HEIGHT - 1 - y.place(dot.y, _HEIGHT)]
        row[x.place(dot.x, columns)] = dot.sign
    labels = {0: y_ends[1], _HEIGHT - 1: y_ends[0]}
    lines = [
        f"{labels.get(index, ''):>{_MARGIN}} |{''.join(row)}".rstrip()
        for index, row in enumerate(grid)
    ]
    lines.append(" " * (_MARGIN + 1) + "+" + "".join(floor))
    gap = columns - len(x_ends[0]) - len(x_ends[1])
    lines.append(" " * (_MARGIN + 2) + x_ends[0] + " " * max(1, gap) + x_ends[1])
    return lines
