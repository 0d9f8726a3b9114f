"""Messages as torch's ``ScheduleGPipe`` and ``Schedule1F1B`` send them: both ranks wait.

A transfer starts when the sender has its result and the receiver has nothing left to do but to
receive it, so it never runs beside the receiver's compute. 1F1B also makes the sender wait where
forwards and backwards alternate, as it sends and receives in one batch; where they do not, an
earlier message must have gone before the next is sent. GPipe's senders wait once all
forwards are done, and once all backwards are. (torch 2.13; NCCL and gloo alike, since a receive
is posted right before the compute that needs it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from autoplan.schedules import ActionKind
from autoplan.simulate.engine import Mail, RankRun
from autoplan.simulate.program import Job, Message

__all__ = ["Transfers", "in_batches", "in_order"]


class Transfers:
    """Messages of which one side at least is there."""

    def __init__(self, mail: Mail) -> None:
        self.mail = mail
        self._senders: dict[int, tuple[float, RankRun, Message]] = {}
        self._receivers: dict[int, float] = {}

    def send(self, run: RankRun, message: Message) -> None:
        """Let a rank be ready to send, now."""
        self._senders[message.number] = run.free, run, message
        self._start(message.number)

    def receive(self, run: RankRun, number: int) -> None:
        """Let a rank be ready to receive, now."""
        self._receivers[number] = run.free
        self._start(number)

    def settle(self, run: RankRun, numbers: list[int]) -> Iterator[int]:
        """Let a rank wait until those messages have gone."""
        for number in numbers:
            if self.mail.is_unknown(number):
                yield number
            run.await_message(self.mail.arrived[number])
        numbers.clear()

    def _start(self, number: int) -> None:
        if number not in self._senders or number not in self._receivers:
            return
        ready, run, message = self._senders.pop(number)
        start = max(ready, self._receivers.pop(number))
        run.record_send(message, start, start + message.seconds)
        self.mail.deliver(number, start + message.seconds)


def in_order(run: RankRun, transfers: Transfers) -> Iterator[int]:
    """Jobs of a rank under GPipe."""
    sent: list[int] = []
    turn = sum(_kind(job) is ActionKind.FORWARD for job in run.jobs)
    for place, job in enumerate(run.jobs):
        if place == turn:
            yield from transfers.settle(run, sent)
        yield from _receive(run, transfers, job, [])
        run.run(job)
        for message in job.messages:
            transfers.send(run, message)
            sent.append(message.number)
    yield from transfers.settle(run, sent)
    run.finish()


def in_batches(run: RankRun, transfers: Transfers) -> Iterator[int]:
    """Jobs of a rank under 1F1B."""
    sent: list[int] = []
    batch: list[Message] = []
    alternates = [_kind(job) is not _kind(after) for job, after in pairwise(run.jobs)]
    for job, fused in zip(run.jobs, [*alternates, False], strict=True):
        yield from _receive(run, transfers, job, batch)
        run.run(job)
        batch = list(job.messages) if fused else []
        if not fused:
            yield from transfers.settle(run, sent)
            for message in job.messages:
                transfers.send(run, message)
                sent.append(message.number)
    yield from transfers.settle(run, sent)
    run.finish()


def _receive(run: RankRun, transfers: Transfers, job: Job, batch: list[Message]) -> Iterator[int]:
    """Receive what a job waits for, and send a batch beside that; both are waited for."""
    run.unshard(job)
    for message in batch:
        transfers.send(run, message)
    for number in job.awaits:
        transfers.receive(run, number)
    yield from transfers.settle(run, [*job.awaits, *(message.number for message in batch)])


def _kind(job: Job) -> ActionKind:
    return job.parts[0][0].kind
