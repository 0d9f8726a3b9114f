"""A step, event by event: each rank goes on until it waits for a message not yet sent.

A rank runs its order whatever the others do, its streams are its own, and only the instants at
which messages arrive come from outside. So ranks may be followed one at a time, each as far
as known arrivals allow, and the result is that of a global clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autoplan.schedules import Action, ActionKind
from autoplan.simulate.costs import DataParallel, Gathering, Reduction
from autoplan.simulate.program import Job, Message
from autoplan.simulate.segments import Segment
from autoplan.simulate.streams import Collective, SlowedStreams, Streams, UnslowedStreams
from autoplan.simulate.timeline import COMPUTE, MODEL, Record, send_stream

__all__ = ["Mail", "RankRun", "beside", "run_ranks"]

_UNKNOWN = -1.0


@dataclass(slots=True)
class Mail:
    """When messages arrive, by number, and who waits for those that nobody has sent yet."""

    arrived: list[float]
    waiting: dict[int, list[int]] = field(default_factory=dict)
    awake: list[int] = field(default_factory=list)

    @classmethod
    def empty(cls, messages: int) -> Mail:
        """Mail of a step before it starts."""
        return cls([_UNKNOWN] * messages)

    def deliver(self, number: int, arrival: float) -> None:
        """Let a message arrive then; those who wait for it may go on."""
        self.arrived[number] = arrival
        if number in self.waiting:
            self.awake.extend(self.waiting.pop(number))

    def is_unknown(self, number: int) -> bool:
        """Whether it isn't known yet when a message arrives."""
        return self.arrived[number] == _UNKNOWN


def run_ranks(runs: Sequence[Iterator[int]], mail: Mail) -> None:
    """Run all ranks to their end; each yields the number of a message that it can't go on without.

    Fails if they wait for each other.
    """
    mail.awake.extend(range(len(runs)))
    while mail.awake:
        rank = mail.awake.pop()
        number = next(runs[rank], None)
        if number is not None:
            mail.waiting.setdefault(number, []).append(rank)
    assert not mail.waiting, f"the schedule deadlocks: {mail.waiting}"


class RankRun:
    """A rank on its way through its jobs: ``free`` is when its compute stream is.

    The other public attributes are seconds of work and of waiting, and when it ends.
    """

    def __init__(
        self, rank: int, jobs: Sequence[Job], data: DataParallel, records: list[Record]
    ) -> None:
        self.rank = rank
        self.jobs = jobs
        self.records = records
        self.free = 0.0
        self.busy = 0.0
        self.awaiting_message = 0.0
        self.awaiting_gather = 0.0
        self.awaiting_reduction = 0.0
        self.awaiting_ranks = 0.0
        self.end = 0.0
        self.end_of_stage: dict[int, float] = {}
        self._joined, self._blocking = data.joined, data.blocking
        self._reduction = data.reduction  # a whole stage's follows what it sends
        self._streams = _streams(rank, data, records)
        self._gathers = _Gathers(jobs, data, self._streams)

    def unshard(self, job: Job) -> None:
        """Issue the gathers of the stages that enter the window with a job."""
        self._gathers.unshard(job, self.free)

    def await_message(self, arrival: float) -> None:
        """Let the compute stream wait for a message."""
        if arrival > self.free:
            self.awaiting_message += arrival - self.free
            self.free = arrival

    def run(self, job: Job) -> None:
        """Run the actions of a job from now on."""
        rank, records, streams, gathers = self.rank, self.records, self._streams, self._gathers
        if self._joined and job.parts[0][0].kind is ActionKind.FORWARD:
            self._await_reductions()
            if not self._blocking:
                gathers.start(self.free)
        free = self.free
        for action, segments in job.parts:
            for segment in segments:
                if self._blocking:
                    gathers.start(free)
                ready = gathers.before(action.stage, free)
                self.awaiting_gather += ready - free
                free = streams.compute(ready, segment.compute)
                records.append((rank, COMPUTE, ready, free, "", action, segment.unit))
                if segment.exposed:
                    end = free + segment.exposed
                    records.append((rank, MODEL, free, end, "collectives of", action, segment.unit))
                    free = end
                self.busy += free - ready
                if segment.reduce:
                    streams.issue(
                        Collective(segment.reduce, free, "reduce after", action, segment.unit)
                    )
                    if self._blocking and self._reduction is not Reduction.STAGE:
                        free = self._reduced(free)
            self.end_of_stage[action.stage] = free
        self.free = free

    def finish(self) -> None:
        """Wait for the last reductions."""
        self._await_reductions()
        self.end = self.free

    def _await_reductions(self) -> None:
        self.free = self._reduced(self.free)

    def _reduced(self, now: float) -> float:
        done = max(now, self._streams.drain())
        self.awaiting_reduction += done - now
        return done

    def record_send(self, message: Message, start: float, end: float) -> None:
        """Note that a message was on its way."""
        if end > start:
            stream = send_stream(message.target)
            self.records.append((self.rank, stream, start, end, "result of", message.action, -1))


def beside(run: RankRun, mail: Mail) -> Iterator[int]:
    """Jobs of a rank whose messages travel beside its compute and the receiver's.

    Each direction between two ranks carries one message at a time.
    """
    links: dict[int, float] = {}
    for job in run.jobs:
        run.unshard(job)
        for number in job.awaits:
            if mail.is_unknown(number):
                yield number
            run.await_message(mail.arrived[number])
        run.run(job)
        for message in job.messages:
            arrival = run.free
            if message.target != run.rank:
                start = max(run.free, links.get(message.target, 0.0))
                arrival = links[message.target] = start + message.seconds
                run.record_send(message, start, arrival)
            mail.deliver(message.number, arrival)
    run.finish()


class _Gathers:
    """Gathers of a rank's parameters, issued ahead of the compute that needs them."""

    def __init__(self, jobs: Sequence[Job], data: DataParallel, streams: Streams) -> None:
        self._streams = streams
        self._stages: dict[int, Collective] = {}
        self._ahead: Iterator[tuple[Action, Segment] | None] = iter(())
        if data.gathering not in (Gathering.NEVER, Gathering.WINDOW):
            self._ahead = _gathered(jobs, data)
        self._coming = self._prefetch(0.0)

    def unshard(self, job: Job, now: float) -> None:
        """Issue the gathers of the stages that enter the window with a job."""
        for stage, seconds in job.unshard:
            if seconds:
                action = job.parts[0][0]
                gather = Collective(seconds, now, f"gather stage {stage} at", action, -1)
                self._streams.issue(gather)
                self._stages[stage] = gather

    def start(self, now: float) -> None:
        """Issue the first gather of a forward that nothing issues ahead."""
        self._coming = self._prefetch(now)

    def before(self, stage: int, ready: float) -> float:
        """Start of the next segment, which is ready but for its parameters; issues the next."""
        coming = self._coming or self._stages.pop(stage, None)
        if coming is not None:
            ready = max(ready, self._streams.wait(coming))
        self._coming = self._prefetch(ready)
        return ready

    def _prefetch(self, now: float) -> Collective | None:
        coming = next(self._ahead, None)
        if coming is None or not coming[1].gather:
            return None
        action, segment = coming
        gather = Collective(segment.gather, now, "gather for", action, segment.unit)
        self._streams.issue(gather)
        return gather


def _gathered(jobs: Sequence[Job], data: DataParallel) -> Iterator[tuple[Action, Segment] | None]:
    """Segments in order, with a None where nothing is issued ahead.

    That is before each forward where gathers are ``joined``, everywhere where they are blocking.
    """
    for job in jobs:
        for action, segments in job.parts:
            if data.joined and not data.blocking and action.kind is ActionKind.FORWARD:
                yield None
            for segment in segments:
                if data.blocking:
                    yield None
                yield action, segment


def _streams(rank: int, data: DataParallel, records: list[Record]) -> Streams:
    if not data.slows:
        return UnslowedStreams(rank, records)
    return SlowedStreams(rank, records, data.compute_slow_down, data.network_slow_down)
