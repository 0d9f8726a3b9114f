"""1F1B: warm up, then one backward and one forward in turn (Narayanan et al. 2019, 2021).

Stage s of p runs ``min(m, p - s)`` forwards before its first backward, so it never holds more
microbatches than that. This is the order in which torch's ``Schedule1F1B`` steps.
"""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind
from autoplan.schedules.limits import need_microbatches, need_stages_per_rank
from autoplan.schedules.placement import looped_stages as stages_of

__all__ = ["NAME", "check", "in_flight", "order", "stages_of"]

NAME = "1f1b"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``Schedule1F1B`` refuses."""
    need_stages_per_rank(NAME, 1, stages_per_rank)
    need_microbatches(NAME, ranks, microbatches)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a rank in the order it runs them, also for fewer microbatches than ranks."""
    need_microbatches(NAME, 1, microbatches)
    warmup = in_flight(rank, ranks, stages_per_rank, microbatches)
    actions = [Action(rank, ActionKind.FORWARD, m) for m in range(warmup)]
    for microbatch in range(microbatches):
        actions.append(Action(rank, ActionKind.BACKWARD, microbatch))
        if microbatch + warmup < microbatches:
            actions.append(Action(rank, ActionKind.FORWARD, microbatch + warmup))
    return tuple(actions)


def in_flight(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    """Most microbatches whose activations a rank holds at once."""
    need_stages_per_rank(NAME, 1, stages_per_rank)
    return min(microbatches, ranks - rank)
