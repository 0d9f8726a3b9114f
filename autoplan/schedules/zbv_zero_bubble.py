"""ZB-V: two stages a rank as a V, split backwards (Qi et al. 2023, section 6; 2024).

The first rank holds the first and the last stage, so a microbatch's loss is where its forward
began. With forward, backward for the input and for the parameters of equal length only the
start of the later ranks is idle. The order is made for at least ``2 p - 1`` microbatches;
with fewer, the actions of those that are missing are left out.
"""

from __future__ import annotations

from autoplan.schedules.action import Action, single_actions
from autoplan.schedules.limits import need_microbatches, need_stages_per_rank
from autoplan.schedules.placement import v_stages
from autoplan.schedules.tape import Tape

__all__ = ["NAME", "check", "order", "stages_of"]

NAME = "zbvzerobubble"
"""The schedule's name, torch's in lower case."""


def check(ranks: int, stages_per_rank: int, microbatches: int) -> None:
    """Refuse numbers that torch's ``ScheduleZBVZeroBubble`` refuses."""
    need_stages_per_rank(NAME, 2, stages_per_rank)
    need_microbatches(NAME, 1, microbatches)


def stages_of(rank: int, ranks: int, stages_per_rank: int) -> tuple[int, ...]:
    """Stages that a rank holds."""
    return v_stages(rank, ranks)


def order(rank: int, ranks: int, stages_per_rank: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a rank in the order it runs them."""
    check(ranks, stages_per_rank, microbatches)
    planned = max(2 * ranks - 1, microbatches)
    tape = Tape()
    down, up = v_stages(rank, ranks)
    _fill(tape, down, up, rank, ranks)
    for turn in range(planned - ranks):
        if turn < planned - (2 * ranks - 1 - rank):
            tape.forward(down)
        tape.backward_input(down)
        tape.backward_weight(down)
        _last_stage_turn(tape, up)
    _drain(tape, down, up, rank, ranks)
    return tuple(a for a in single_actions(tape.steps) if a.microbatch < microbatches)


def _fill(tape: Tape, down: int, up: int, rank: int, ranks: int) -> None:
    """Forwards until the first microbatch is back at the top of the V, then its backwards."""
    for _ in range(2 * (ranks - rank) - 1):
        tape.forward(down)
    for _ in range(rank):
        tape.forward(up)
        tape.forward(down)
    for _ in range(ranks - rank):
        _last_stage_turn(tape, up)


def _last_stage_turn(tape: Tape, up: int) -> None:
    tape.forward(up)
    tape.backward_input(up)
    tape.backward_weight(up)


def _drain(tape: Tape, down: int, up: int, rank: int, ranks: int) -> None:
    """Backwards for the input first, as other ranks wait for them; parameters fill in."""
    for _ in range(rank):
        tape.backward_input(down)
        tape.backward_input(up)
    for _ in range(ranks - rank):
        tape.backward_input(down)
        tape.backward_weight(down)
    for stage in (up, down):
        for _ in range(tape.waiting(stage)):
            tape.backward_weight(stage)
