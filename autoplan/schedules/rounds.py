"""The order in which looped stages see microbatches: by rounds, a whole round a stage."""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind
from autoplan.schedules.placement import looped_stages

__all__ = ["actions_by_rounds"]


def actions_by_rounds(
    kind: ActionKind, rank: int, ranks: int, stages_per_rank: int, microbatches: int, size: int
) -> list[Action]:
    """All actions of a kind of a rank, ``size`` microbatches a round; backwards last stage first.

    >>> turns = actions_by_rounds(ActionKind.FORWARD, 0, 2, 2, 4, 2)
    >>> " ".join(map(str, turns))
    '0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3'
    """
    stages = looped_stages(rank, ranks, stages_per_rank)
    if kind is not ActionKind.FORWARD:
        stages = stages[::-1]
    return [
        Action(stage, kind, microbatch)
        for start in range(0, microbatches, size)
        for stage in stages
        for microbatch in range(start, start + size)
    ]
