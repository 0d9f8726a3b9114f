"""The recompute levels of a chain of blocks, in one word and in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from autoplan.ir.recompute import Recompute

__all__ = ["Level", "LevelRun", "Summary", "level_runs", "level_summary", "levels_text"]

Level = Literal["none", "selective", "full"]
Summary = Literal["none", "selective", "full", "mixed"]
LevelRun = tuple[Level, int, int]
"""A level, and the blocks ``first`` to ``last`` (exclusive) of the chain that have it."""

_BY_LEVEL: dict[str, Level] = {"none": "none", "selective": "selective", "full": "full"}


def level_summary(levels: Sequence[str]) -> Summary:
    """The level of all blocks, or ``mixed``.

    >>> level_summary(["full", "full"]), level_summary(["full", "none"])
    ('full', 'mixed')
    """
    first = next(iter(levels), "none")
    return "mixed" if any(level != first for level in levels) else _BY_LEVEL[first]


def levels_text(levels: Sequence[str]) -> str:
    """How many blocks have which level.

    >>> levels_text(["none", "full", "full", "none"])
    'full in 2 of 4 blocks, else none'
    >>> levels_text(["full", "full"])
    'full'
    """
    counts = Counter(levels)
    held = [level.value for level in reversed(Recompute) if counts[level.value]] or ["none"]
    *named, rest = held
    if not named:
        return rest
    parts = ", ".join(f"{level} in {counts[level]}" for level in named)
    return f"{parts} of {len(levels)} blocks, else {rest}"


def level_runs(levels: Sequence[str]) -> tuple[LevelRun, ...]:
    """Levels of consecutive blocks.

    >>> level_runs(["none", "full", "full"])
    (('none', 0, 1), ('full', 1, 3))
    """
    runs: list[LevelRun] = []
    for level, group in groupby(levels):
        first = runs[-1][2] if runs else 0
        runs.append((_BY_LEVEL[level], first, first + len(list(group))))
    return tuple(runs)
