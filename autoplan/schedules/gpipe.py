"""GPipe: all forwards, then all backwards, each in microbatch order (Huang et al. 2019)."""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind
from autoplan.schedules.limits import need_microbatches, need_stages_per_rank
from autoplan.schedules.placement import looped_stages as stages_of

__all__ = ["NAME", "check", "in_flight", "order", "stages_of"]

NAME = "gpipe"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``ScheduleGPipe`` refuses."""
    need_stages_per_rank(NAME, 1, stages_per_rank)
    need_microbatches(NAME, 1, microbatches)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a rank in the order it runs them."""
    check(ranks, stages_per_rank, microbatches)
    return tuple(
        Action(rank, kind, microbatch)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
        for microbatch in range(microbatches)
    )


def in_flight(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    """Most microbatches whose activations a rank holds at once."""
    need_stages_per_rank(NAME, 1, stages_per_rank)
    return microbatches
