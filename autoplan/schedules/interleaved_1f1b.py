"""Interleaved 1F1B: several stages a rank, in loops (Narayanan et al. 2021, section 2.2).

A rank takes a round of microbatches through each of its stages in turn; after a warm-up of
``(v - 1) k + 2 (p - 1 - r)`` forwards (k microbatches a round) it alternates one forward and one
backward. Rounds of other sizes than p are torch's extension: ``max(1, m // p)`` equal rounds.
"""

from __future__ import annotations

from itertools import chain, zip_longest

from autoplan.schedules.action import Action, ActionKind
from autoplan.schedules.limits import need_microbatches, round_size
from autoplan.schedules.placement import looped_stages as stages_of
from autoplan.schedules.rounds import actions_by_rounds

__all__ = ["NAME", "check", "in_flight", "order", "stages_of"]

NAME = "interleaved1f1b"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``ScheduleInterleaved1F1B`` refuses."""
    need_microbatches(NAME, 1, microbatches)
    round_size(NAME, ranks, microbatches)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a rank in the order it runs them."""
    check(ranks, stages_per_rank, microbatches)
    size = round_size(NAME, ranks, microbatches)
    forwards, backwards = (
        actions_by_rounds(kind, rank, ranks, stages_per_rank, microbatches, size)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
    )
    warmup = _warmup(rank, ranks, stages_per_rank, microbatches)
    turns = chain.from_iterable(zip_longest(forwards[warmup:], backwards))
    return (*forwards[:warmup], *(action for action in turns if action is not None))


def in_flight(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    """Most microbatches of stages whose activations a rank holds at once."""
    warmup = _warmup(rank, ranks, stages_per_rank, microbatches)
    return min(microbatches * stages_per_rank, warmup + 1)


def _warmup(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    size = round_size(NAME, ranks, microbatches)
    ahead = (stages_per_rank - 1) * size + 2 * (ranks - 1 - rank)
    return min(microbatches * stages_per_rank, ahead)
