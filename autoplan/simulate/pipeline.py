"""A pipeline of which only the seconds of its stages and links are known."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.overlap import GatherWaits
from autoplan.schedules import ActionKind
from autoplan.simulate.costs import DataParallel, Gathering, Messages, stage_of_times
from autoplan.simulate.program import Job
from autoplan.simulate.segments import Segment
from autoplan.simulate.step import jobs_of_step, run_jobs
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
    gather: Sequence[GatherWaits] = (),
    gathering: Gathering = Gathering.NEVER,
) -> Timeline:
    """Timeline of one step: seconds of each stage for one microbatch, and of each link.

    ``send[s]`` is what a message between stages s and s + 1 takes, either way. Each stage has
    its own rank unless ``ranks`` says how many share them. Split backwards are halves.
    ``messages`` tells whether ranks wait while results travel. ``gather`` is what each stage's
    passes take longer that gather parameters, which ``gathering`` (``STEP`` or ``TURN``) tells;
    with it each stage has its own rank, and backwards are not split.
    """
    stages = len(forward)
    assert len(backward) == stages and len(send) == stages - 1
    ranks = ranks or stages
    costs = [
        stage_of_times(
            forward[stage],
            backward[stage],
            send_output=send[stage] if stage < stages - 1 else 0.0,
            send_gradient=send[stage - 1] if stage else 0.0,
        )
        for stage in range(stages)
    ]
    jobs, rank_of = jobs_of_step(schedule, costs, ranks, microbatches, DataParallel())
    data = DataParallel()
    if gathering is not Gathering.NEVER:
        assert ranks == stages and len(gather) == stages
        data = DataParallel(gathering=gathering, joined=True)
        jobs = [
            _with_waits(own, waits, turns=gathering is Gathering.TURN)
            for own, waits in zip(jobs, gather, strict=True)
        ]
    return run_jobs(jobs, rank_of, schedule, data=data, messages=messages)


def _with_waits(jobs: Sequence[Job], waits: GatherWaits, *, turns: bool) -> list[Job]:
    """Jobs of a stage with what each takes longer for gathers.

    With ``turns`` a forward that comes before a backward ends in a segment of no length, at whose
    start the engine issues what is left of the gather of the backward's first unit.
    """
    made = []
    there = False
    for job, after in zip(jobs, [*jobs[1:], None], strict=True):
        ((action, (segment,)),) = job.parts
        forward = action.kind is ActionKind.FORWARD
        seconds, left = segment.compute, 0.0
        if not there:
            seconds += waits.forward if forward else waits.backward
            left = 0.0 if forward else waits.left
        before_backward = (
            turns and forward and after and after.parts[0][0].kind is not ActionKind.FORWARD
        )
        seconds += waits.beside if before_backward else 0.0
        segments = [Segment(-1, seconds, 0.0, left, 0.0)]
        if before_backward:
            segments.append(Segment(-1, 0.0, 0.0, 0.0, 0.0))
        made.append(job._replace(parts=((action, tuple(segments)),)))
        there = not (turns and forward)
    return made
