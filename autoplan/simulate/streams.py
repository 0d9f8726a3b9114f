"""The two streams of a rank: kernels, and data-parallel collectives beside them.

Collectives run in the order in which they are issued, one at a time. Where the streams slow each
other down, times follow from how much of each is left whenever one starts or ends.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from autoplan.schedules import Action
from autoplan.simulate.timeline import DATA, Record

__all__ = ["Collective", "SlowedStreams", "Streams", "UnslowedStreams"]


class Collective:
    """An issued collective: not before ``earliest``, ``left`` seconds of it to go."""

    __slots__ = ("action", "earliest", "end", "left", "start", "unit", "verb")

    def __init__(
        self, seconds: float, earliest: float, verb: str, action: Action, unit: int
    ) -> None:
        self.left = seconds
        self.earliest = earliest
        self.start = -1.0
        self.end = -1.0
        self.verb = verb
        self.action = action
        self.unit = unit


class Streams(Protocol):
    """What the engine asks of a rank's streams."""

    def issue(self, collective: Collective) -> None:
        """Put a collective behind those issued before it."""

    def wait(self, collective: Collective) -> float:
        """End of a collective that the compute stream waits for, idle."""

    def compute(self, start: float, seconds: float) -> float:
        """End of kernels that start then."""

    def drain(self) -> float:
        """End of the last collective; 0 if there was none."""


class UnslowedStreams:
    """Streams that do not disturb each other."""

    def __init__(self, rank: int, records: list[Record]) -> None:
        self._rank = rank
        self._records = records
        self._free = 0.0

    def issue(self, collective: Collective) -> None:
        """Put a collective behind those issued before it."""
        start = max(self._free, collective.earliest)
        self._free = collective.end = start + collective.left
        _record(self._records, self._rank, collective, start)

    def wait(self, collective: Collective) -> float:
        """End of a collective that the compute stream waits for, idle."""
        return collective.end

    def compute(self, start: float, seconds: float) -> float:
        """End of kernels that start then."""
        return start + seconds

    def drain(self) -> float:
        """End of the last collective; 0 if there was none."""
        return self._free


class SlowedStreams:
    """Streams that slow each other down while both are busy."""

    def __init__(
        self, rank: int, records: list[Record], compute_slow_down: float, network_slow_down: float
    ) -> None:
        self._rank = rank
        self._records = records
        self._compute = compute_slow_down
        self._network = network_slow_down
        self._queue: deque[Collective] = deque()
        self._now = 0.0
        self._last = 0.0

    def issue(self, collective: Collective) -> None:
        """Put a collective behind those issued before it."""
        self._queue.append(collective)

    def wait(self, collective: Collective) -> float:
        """End of a collective that the compute stream waits for, idle."""
        while collective.end < 0.0:
            self._finish_first()
        return collective.end

    def compute(self, start: float, seconds: float) -> float:
        """End of kernels that start then."""
        self._idle_until(start)
        now, left = start, seconds
        while left > 0.0 and self._queue:
            first = self._queue[0]
            self._begin(first, now)
            alone = first.left * self._network
            if left * self._compute < alone:
                span = left * self._compute
                first.left -= span / self._network
                now, left = now + span, 0.0
            else:
                now += alone
                left = max(0.0, left - alone / self._compute)
                self._end(first, now)
        now += left
        self._now = max(self._now, now)
        return now

    def drain(self) -> float:
        """End of the last collective; 0 if there was none."""
        while self._queue:
            self._finish_first()
        return self._last

    def _idle_until(self, until: float) -> None:
        """Run collectives at full speed up to an instant."""
        while self._queue:
            first = self._queue[0]
            start = max(self._now, first.earliest)
            if start >= until:
                break
            self._begin(first, start)
            if start + first.left > until:
                first.left -= until - start
                break
            self._end(first, start + first.left)
        self._now = max(self._now, until)

    def _finish_first(self) -> None:
        first = self._queue[0]
        start = max(self._now, first.earliest)
        self._begin(first, start)
        self._end(first, start + first.left)

    @staticmethod
    def _begin(collective: Collective, now: float) -> None:
        if collective.start < 0.0:
            collective.start = now

    def _end(self, collective: Collective, now: float) -> None:
        collective.end = self._now = self._last = now
        self._queue.popleft()
        _record(self._records, self._rank, collective, collective.start)


def _record(records: list[Record], rank: int, collective: Collective, start: float) -> None:
    records.append(
        (rank, DATA, start, collective.end, collective.verb, collective.action, collective.unit)
    )
