"""DualPipeV: a V of two stages a rank that pairs forwards and backwards (DeepSeek 2025).

In the steady state a rank runs the forward of one of its stages beside the backward of the
other, so that the collectives of one may hide behind the compute of the other. Some backwards of
the fill and of the drain are split, to shorten the bubble.
"""

from __future__ import annotations

from autoplan.schedules.action import Step
from autoplan.schedules.limits import need_microbatches, need_stages_per_rank
from autoplan.schedules.placement import v_stages
from autoplan.schedules.tape import Tape

__all__ = ["NAME", "check", "order", "stages_of"]

NAME = "dualpipev"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``ScheduleDualPipeV`` refuses."""
    need_stages_per_rank(NAME, 2, stages_per_rank)
    need_microbatches(NAME, 2 * ranks, microbatches)


def stages_of(rank: int, ranks: int, stages_per_rank: int) -> tuple[int, ...]:
    """Stages that a rank holds."""
    return v_stages(rank, ranks)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Step, ...]:
    """Actions and pairs of a rank in the order it runs them."""
    check(ranks, stages_per_rank, microbatches)
    tape = Tape()
    down, up = v_stages(rank, ranks)
    below = ranks - 1 - rank
    for _ in range(2 * below):
        tape.forward(down)
    for _ in range(rank + 1):
        tape.forward(down)
        tape.forward(up)
    for _ in range(below):
        tape.backward_input(up)
        tape.oldest_backward_weight()
        tape.forward(up)
    for turn in range(microbatches - 2 * ranks + rank + 1):
        if turn == 0 and below == 0:
            # The fold of the V: nobody waits for this forward yet, the backward is due.
            tape.forward(down)
            tape.backward(up)
        else:
            tape.overlapped(down, up)
        tape.overlapped(up, down)
    for _ in range(below):
        tape.backward(up)
        tape.overlapped(up, down)
    _drain(tape, down, up, rank, below)
    return tuple(tape.steps)


def _drain(tape: Tape, down: int, up: int, rank: int, below: int) -> None:
    """The last backwards; the second half for the input first, as other ranks wait for it."""
    for turn in range(2 * (rank + 1)):
        stage = down if turn % 2 else up
        if turn <= rank:
            tape.backward(stage)
        else:
            tape.backward_input(stage)
    for _ in range(below):
        tape.oldest_backward_weight()
        tape.backward_input(down)
    for _ in range(rank + 1):
        tape.oldest_backward_weight()
