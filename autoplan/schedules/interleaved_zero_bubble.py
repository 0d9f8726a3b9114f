"""Interleaved 1F1B with split backwards: ZB-H1 of Qi et al. 2023, in loops.

Parameters' gradients wait until ``r`` backwards for the input later, which fills the bubbles, and
the warm-up is ``(v - 1) k + (p - 1 - r)`` forwards for rounds of k microbatches. Every rank then
holds ``(v - 1) k + p``, as many as the first rank of 1F1B does when v is 1.
"""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind
from autoplan.schedules.limits import need_microbatches, round_size
from autoplan.schedules.placement import looped_stages as stages_of
from autoplan.schedules.rounds import actions_by_rounds

__all__ = ["NAME", "check", "in_flight", "order", "stages_of"]

NAME = "interleavedzerobubble"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``ScheduleInterleavedZeroBubble`` refuses."""
    need_microbatches(NAME, 1, microbatches)
    round_size(NAME, ranks, microbatches)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a rank in the order it runs them."""
    check(ranks, stages_per_rank, microbatches)
    size = round_size(NAME, ranks, microbatches)
    forwards, inputs, weights = (
        actions_by_rounds(kind, rank, ranks, stages_per_rank, microbatches, size)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
    )
    warmup = _warmup(rank, ranks, stages_per_rank, microbatches)
    actions = forwards[:warmup]
    for turn, backward in enumerate(inputs):
        actions.extend(forwards[warmup + turn : warmup + turn + 1])
        actions.append(backward)
        if turn >= rank:
            actions.append(weights[turn - rank])
    actions.extend(weights[max(0, len(weights) - rank) :])
    return tuple(actions)


def in_flight(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    """Most microbatches of stages whose activations a rank holds at once."""
    warmup = _warmup(rank, ranks, stages_per_rank, microbatches)
    return min(microbatches * stages_per_rank, warmup + rank + 1)


def _warmup(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> int:
    size = round_size(NAME, ranks, microbatches)
    ahead = (stages_per_rank - 1) * size + ranks - 1 - rank
    return min(microbatches * stages_per_rank, ahead)
