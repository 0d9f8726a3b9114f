"""What a simulation returns: events by rank and stream, and where the time of a rank goes."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.schedules import Action

__all__ = ["COMPUTE", "DATA", "MODEL", "Event", "Record", "Timeline", "send_stream"]

COMPUTE = "compute"
"""Stream of kernels."""
MODEL = "tp, cp and ep collectives"
"""Stream of collectives that kernels wait for."""
DATA = "dp collectives"
"""Stream of gathers and reductions that run beside kernels."""

Record = tuple[int, str, float, float, str, Action | None, int]
"""Rank, stream, start, end, verb, action and unit of an event."""


def send_stream(target: int) -> str:
    """Stream of the messages to a rank."""
    return f"send to rank {target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a stream of a rank did, in seconds from the start of the step."""

    rank: int
    stream: str
    start: float
    end: float
    label: str
    action: Action | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step of all ranks.

    By rank, in seconds, with the makespan as their sum: ``busy`` is kernels and the collectives
    they wait for; then what a rank waits for: messages of other ranks, its own gathers,
    its last reductions, and the end of the step. ``end_of_stage`` is when each stage's last
    action ends.
    """

    records: tuple[Record, ...]
    busy: tuple[float, ...]
    awaiting_message: tuple[float, ...]
    awaiting_gather: tuple[float, ...]
    awaiting_reduction: tuple[float, ...]
    awaiting_ranks: tuple[float, ...]
    end_of_stage: tuple[float, ...]
    makespan: float

    @property
    def events(self) -> tuple[Event, ...]:
        """Events by start time."""
        return tuple(
            Event(
                rank=rank,
                stream=stream,
                start=start,
                end=end,
                label=_label(verb, action, unit),
                action=action,
            )
            for rank, stream, start, end, verb, action, unit in sorted(
                self.records, key=lambda record: record[2]
            )
        )

    @property
    def bubble(self) -> tuple[float, ...]:
        """Seconds that each rank does not work, until the step is done."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_share(self) -> float:
        """Share of all ranks' step that they do not work."""
        return sum(self.bubble) / (len(self.busy) * self.makespan)

    @property
    def bubble_overhead(self) -> float:
        """Time that ranks do not work over the time that they do."""
        return sum(self.bubble) / sum(self.busy)

    def seconds_of(self, stream: str) -> tuple[float, ...]:
        """Seconds of the events of a stream, by rank."""
        seconds = [0.0] * len(self.busy)
        for rank, of, start, end, *_ in self.records:
            if of == stream:
                seconds[rank] += end - start
        return tuple(seconds)


def _label(verb: str, action: Action | None, unit: int) -> str:
    if action is None:
        return verb
    if unit >= 0:
        return f"{verb} {action} unit {unit}".lstrip()
    return f"{verb} {action}".lstrip()
