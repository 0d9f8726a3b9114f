"""Looped breadth-first: each stage takes all microbatches before the next (Lamy-Poirier 2023).

A stage's parameters are needed in one window a pass and its gradient is final early, at the
price of activations of all microbatches. Backwards go from the last microbatch to the first, as
in torch's ``ScheduleLoopedBFS``.
"""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind
from autoplan.schedules.limits import need_microbatches
from autoplan.schedules.placement import looped_stages as stages_of

__all__ = ["NAME", "check", "in_flight", "order", "stages_of"]

NAME = "loopedbfs"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``ScheduleLoopedBFS`` refuses."""
    need_microbatches(NAME, 1, microbatches)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a rank in the order it runs them."""
    check(ranks, stages_per_rank, microbatches)
    stages = stages_of(rank, ranks, stages_per_rank)
    forwards = (Action(s, ActionKind.FORWARD, m) for s in stages for m in range(microbatches))
    backwards = (
        Action(stage, ActionKind.BACKWARD, microbatch)
        for stage in reversed(stages)
        for microbatch in reversed(range(microbatches))
    )
    return (*forwards, *backwards)


def in_flight(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    """Most microbatches of stages whose activations a rank holds at once."""
    return microbatches * stages_per_rank
