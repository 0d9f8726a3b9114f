"""A step, event by event: each rank goes on until it waits for a message not yet sent.

A rank runs its order whatever the others do, its streams and its outgoing links are its own, and
only the instants at which messages arrive come from outside. So ranks may be followed one at a
time, each as far as known arrivals allow, and the result is that of a global clock. A result
is sent while the sender computes on; each direction of each link carries one message at a
time, and the receiver waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autoplan.schedules import Action
from autoplan.simulate.costs import DataParallel, Gathering
from autoplan.simulate.program import Job
from autoplan.simulate.segments import Segment
from autoplan.simulate.streams import Collective, SlowedStreams, Streams, UnslowedStreams
from autoplan.simulate.timeline import COMPUTE, MODEL, Record, send_stream

__all__ = ["RankOutcome", "run_ranks"]

_UNKNOWN = -1.0


@dataclass(slots=True)
class RankOutcome:
    """What a rank did: seconds of work and of waiting, and when its streams and stages ended."""

    busy: float = 0.0
    awaiting_input: float = 0.0
    awaiting_gather: float = 0.0
    awaiting_reduction: float = 0.0
    awaiting_ranks: float = 0.0
    end: float = 0.0
    end_of_stage: dict[int, float] = field(default_factory=dict)


def run_ranks(
    programs: Sequence[Sequence[Job]], messages: int, data: DataParallel
) -> tuple[list[RankOutcome], list[Record]]:
    """Outcome of every rank, and everything that happened, by rank."""
    records: list[Record] = []
    arrived = [_UNKNOWN] * messages
    waiting: dict[int, int] = {}
    awake = list(range(len(programs)))
    outcomes = [RankOutcome() for _ in programs]
    runs = [
        _run(rank, jobs, data, arrived, waiting, awake, outcomes[rank], records)
        for rank, jobs in enumerate(programs)
    ]
    while awake:
        rank = awake.pop()
        number = next(runs[rank], None)
        if number is not None:
            waiting[number] = rank
    assert not waiting, f"the schedule deadlocks: {waiting}"
    return outcomes, records


def _run(
    rank: int,
    jobs: Sequence[Job],
    data: DataParallel,
    arrived: list[float],
    waiting: dict[int, int],
    awake: list[int],
    outcome: RankOutcome,
    records: list[Record],
) -> Iterator[int]:
    """Run a rank; yields the number of a message whenever its arrival is not known yet."""
    streams = _streams(rank, data, records)
    gathers = _Gathers(jobs, data, streams)
    links: dict[int, float] = {}
    free = 0.0
    for job in jobs:
        gathers.unshard(job, free)
        ready = free
        for number in job.awaits:
            if arrived[number] == _UNKNOWN:
                yield number
            ready = max(ready, arrived[number])
        outcome.awaiting_input += ready - free
        free = ready
        for action, segments in job.parts:
            for segment in segments:
                ready = gathers.before(action.stage, free)
                outcome.awaiting_gather += ready - free
                free = streams.compute(ready, segment.compute)
                records.append((rank, COMPUTE, ready, free, "", action, segment.unit))
                if segment.exposed:
                    end = free + segment.exposed
                    records.append((rank, MODEL, free, end, "collectives of", action, segment.unit))
                    free = end
                outcome.busy += free - ready
                if segment.reduce:
                    streams.issue(
                        Collective(segment.reduce, free, "reduce after", action, segment.unit)
                    )
            outcome.end_of_stage[action.stage] = free
        for number, target, seconds, action in job.messages:
            arrival = free
            if target != rank:
                start = max(free, links.get(target, 0.0))
                arrival = links[target] = start + seconds
                if seconds:
                    stream = send_stream(target)
                    records.append((rank, stream, start, arrival, "result of", action, -1))
            arrived[number] = arrival
            if number in waiting:
                awake.append(waiting.pop(number))
    outcome.end = max(free, streams.drain())
    outcome.awaiting_reduction = outcome.end - free


class _Gathers:
    """Gathers of a rank's parameters, issued ahead of the compute that needs them."""

    def __init__(self, jobs: Sequence[Job], data: DataParallel, streams: Streams) -> None:
        self._streams = streams
        self._stages: dict[int, Collective] = {}
        self._ahead: Iterator[tuple[Action, Segment]] = iter(())
        if data.gathering in (Gathering.STEP, Gathering.ACTION):
            self._ahead = (
                (action, segment)
                for job in jobs
                for action, segments in job.parts
                for segment in segments
            )
        self._coming = self._prefetch(0.0)

    def unshard(self, job: Job, now: float) -> None:
        """Issue the gathers of the stages that enter the window with a job."""
        for stage, seconds in job.unshard:
            if seconds:
                action = job.parts[0][0]
                gather = Collective(seconds, now, f"gather stage {stage} at", action, -1)
                self._streams.issue(gather)
                self._stages[stage] = gather

    def before(self, stage: int, ready: float) -> float:
        """Start of the next segment, which is ready but for its parameters; issues the next."""
        coming = self._coming or self._stages.pop(stage, None)
        if coming is not None:
            ready = max(ready, self._streams.wait(coming))
        self._coming = self._prefetch(ready)
        return ready

    def _prefetch(self, now: float) -> Collective | None:
        action, segment = next(self._ahead, (None, None))
        if action is None or segment is None or not segment.gather:
            return None
        gather = Collective(segment.gather, now, "gather for", action, segment.unit)
        self._streams.issue(gather)
        return gather


def _streams(rank: int, data: DataParallel, records: list[Record]) -> Streams:
    if not data.slows:
        return UnslowedStreams(rank, records)
    return SlowedStreams(rank, records, data.compute_slow_down, data.network_slow_down)
