"""A pipeline of which only the seconds of its stages and links are known."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.simulate.costs import DataParallel, Gathering, Messages, stage_of_times
from autoplan.simulate.step import simulate_step
from autoplan.simulate.timeline import Timeline

__all__ = ["simulate_pipeline"]


def simulate_pipeline(
    schedule: str,
    forward: Sequence[float],
    backward: Sequence[float],
    send: Sequence[float],
    microbatches: int,
    ranks: int | None = None,
    messages: Messages = Messages.BESIDE,
    gather: Sequence[float] = (),
    gathering: Gathering = Gathering.NEVER,
) -> Timeline:
    """Timeline of one step: seconds of each stage for one microbatch, and of each link.

    ``send[s]`` is what a message between stages s and s + 1 takes, either way. Each stage has
    its own rank unless ``ranks`` says how many share them. Split backwards are halves.
    ``messages`` tells whether ranks wait while results travel. ``gather`` is what each stage waits
    before the actions that gather its parameters.
    """
    stages = len(forward)
    waits = gather or [0.0] * stages
    assert len(backward) == stages and len(send) == stages - 1
    return simulate_step(
        schedule,
        [
            stage_of_times(
                forward[stage],
                backward[stage],
                send_output=send[stage] if stage < stages - 1 else 0.0,
                send_gradient=send[stage - 1] if stage else 0.0,
                gather=waits[stage],
            )
            for stage in range(stages)
        ],
        ranks=ranks or stages,
        microbatches=microbatches,
        data=DataParallel(gathering=gathering, joined=True, blocking=True),
        messages=messages,
    )
