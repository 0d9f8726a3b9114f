"""Stages of the pipeline that the user fixes, by numbers or names of blocks."""

from __future__ import annotations

import re
from itertools import pairwise

from autoplan.errors import UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.names import near_matches
from autoplan.solver.sweep import Ranges

__all__ = ["parse_stages", "stages_text"]

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")


def stages_text(stages: Ranges) -> str:
    """Stages by the numbers of their first and last blocks.

    >>> stages_text(((0, 12), (12, 13)))
    '0-11,12'
    """
    return ",".join(str(a) if b - a == 1 else f"{a}-{b - 1}" for a, b in stages)


def parse_stages(text: str, graph: Graph) -> Ranges:
    """Stages of ``0-11,12-23`` (blocks by number, ends included), or of names of first blocks.

    The first stage starts at the first block, so that its name may be left out. Raises UsageError
    unless each block is in one stage, in the order of the chain.
    """
    parts = [part.strip() for part in text.split(",")]
    ranges = [_RANGE.match(part) for part in parts]
    if all(ranges):
        stages = tuple((int(m[1]), int(m[2] or m[1]) + 1) for m in ranges if m)
    elif any(ranges):
        raise UsageError(
            f"--stages {text}: blocks by number and by name at once",
            hint="write ranges (0-11,12-23), or the first block of each stage",
        )
    else:
        stages = _from_starts(text, parts, graph)
    _require_whole(text, stages, len(graph.instances))
    return stages


def _from_starts(text: str, names: list[str], graph: Graph) -> Ranges:
    order = [instance.name for instance in graph.instances]
    for name in names:
        if name not in order:
            raise UsageError(
                f"--stages {text}: {graph.name} has no block {name!r}",
                hint=near_matches(name, order, what="blocks", most=12),
            )
    starts = [order.index(name) for name in names]
    if starts[0] != 0:
        starts = [0, *starts]
    for before, after in pairwise(starts):
        if after <= before:
            raise UsageError(
                f"--stages {text}: {order[after]} does not come after {order[before]}",
                hint="name the first block of each stage in the order of the chain",
            )
    return tuple(pairwise([*starts, len(order)]))


def _require_whole(text: str, stages: Ranges, blocks: int) -> None:
    expected = 0
    for first, last in stages:
        if last <= first:
            raise UsageError(
                f"--stages {text}: {first}-{last - 1} ends before it starts",
                hint=f"write {last - 1}-{first}, or the first block of each stage",
            )
        if last > blocks:
            raise UsageError(
                f"--stages {text}: the model has {blocks} blocks, the last is {blocks - 1}",
                hint="autoplan inspect MODEL lists the kinds of blocks",
            )
        if first != expected:
            wrong = "in two stages" if first < expected else "in no stage"
            raise UsageError(
                f"--stages {text}: block {min(first, expected)} is {wrong}",
                hint=f"a stage starts at {expected}, after the one before it",
            )
        expected = last
    if expected != blocks:
        raise UsageError(
            f"--stages {text}: block {expected} is in no stage",
            hint=f"the last stage ends at {blocks - 1}",
        )
