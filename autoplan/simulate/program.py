"""A rank's order with all that the engine needs: work, gathers, reductions, messages.

Messages are numbered: ``(2 s + d) m + i`` is what stage s waits for with microbatch i of m, with
d = 0 for its input and 1 for the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoplan.schedules import Action, ActionKind, Overlapped, Step
from autoplan.simulate.costs import DataParallel, Gathering, StageCost
from autoplan.simulate.segments import Segment, Segments, side_by_side
from autoplan.simulate.windows import windows

__all__ = ["Job", "Message", "jobs_of_rank"]


class Message(NamedTuple):
    """A result on its way: its number, the rank that gets it, seconds to send it."""

    number: int
    target: int
    seconds: float
    action: Action


class Job(NamedTuple):
    """What runs without a message leaving in between.

    It waits for the messages ``awaits``, then runs the segments of its actions. ``unshard`` are
    stages whose units are gathered together, beside what runs, when the job before has ended.
    """

    awaits: tuple[int, ...]
    parts: tuple[tuple[Action, tuple[Segment, ...]], ...]
    messages: tuple[Message, ...]
    unshard: tuple[tuple[int, float], ...]


def jobs_of_rank(
    steps: Sequence[Step],
    stages: Sequence[StageCost],
    rank_of: Sequence[int],
    microbatches: int,
    data: DataParallel,
) -> Iterator[Job]:
    """Jobs of a rank in the order it runs them."""
    segments = Segments(stages, microbatches, data)
    routes = _Routes(stages, rank_of, microbatches)
    window = windows(steps, data.window) if data.gathering is Gathering.WINDOW else None
    for step in steps:
        unshard = tuple((s, segments.gather_of(s)) for s in next(window)) if window else ()
        if isinstance(step, Overlapped):
            yield from _pair(step, segments, routes, data, unshard)
        else:
            yield Job(
                routes.awaits(step), ((step, segments.of(step)),), routes.sends(step), unshard
            )


def _pair(
    pair: Overlapped,
    segments: Segments,
    routes: _Routes,
    data: DataParallel,
    unshard: tuple[tuple[int, float], ...],
) -> Iterator[Job]:
    """One job if the two run side by side; else two, and what the first sends waits."""
    forward, backward = segments.of(pair.forward), segments.of(pair.backward)
    awaits = routes.awaits(pair.forward), routes.awaits(pair.backward)
    sends = (*routes.sends(pair.forward), *routes.sends(pair.backward))
    if data.pairs_side_by_side:
        forward, backward = side_by_side(forward, backward, data)
        parts = (pair.forward, forward), (pair.backward, backward)
        yield Job((*awaits[0], *awaits[1]), parts, sends, unshard)
        return
    kept = tuple(m for m in routes.sends(pair.forward) if routes.stays(pair.forward, m))
    later = tuple(message for message in sends if message not in kept)
    yield Job(awaits[0], ((pair.forward, forward),), kept, unshard)
    yield Job(awaits[1], ((pair.backward, backward),), later, ())


class _Routes:
    """Messages of actions, by where the stages are."""

    def __init__(
        self, stages: Sequence[StageCost], rank_of: Sequence[int], microbatches: int
    ) -> None:
        self._stages = stages
        self._rank_of = rank_of
        self._microbatches = microbatches

    def awaits(self, action: Action) -> tuple[int, ...]:
        """Numbers of the messages that an action waits for, other than its rank's own work."""
        stage, kind = action.stage, action.kind
        if kind is ActionKind.FORWARD:
            return (2 * stage * self._microbatches + action.microbatch,) if stage else ()
        if kind is ActionKind.BACKWARD_WEIGHT or stage == len(self._stages) - 1:
            return ()
        return ((2 * stage + 1) * self._microbatches + action.microbatch,)

    def sends(self, action: Action) -> tuple[Message, ...]:
        """What an action's result is sent as."""
        stage, kind = action.stage, action.kind
        if kind is ActionKind.FORWARD:
            if stage == len(self._stages) - 1:
                return ()
            number = 2 * (stage + 1) * self._microbatches + action.microbatch
            target, seconds = stage + 1, self._stages[stage].send_output
        elif kind is ActionKind.BACKWARD_WEIGHT or not stage:
            return ()
        else:
            number = (2 * stage - 1) * self._microbatches + action.microbatch
            target, seconds = stage - 1, self._stages[stage].send_gradient
        return (Message(number, self._rank_of[target], seconds, action),)

    def stays(self, action: Action, message: Message) -> bool:
        """Whether a message needs no link."""
        return self._rank_of[action.stage] == message.target
