"""One step of a pipeline, event by event: a heap of instants at which a stage may go on.

Each stage runs the actions of its schedule in order, each as soon as its input is there. A
result is sent while the sender computes on; each direction of each link carries one message
at a time, and the receiver waits for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.schedules import Action, ActionKind, order

__all__ = ["Event", "Timeline", "simulate_pipeline"]


@dataclass(frozen=True, slots=True)
class Event:
    """An action and when it ran, in seconds from the start of the step."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Events by start time; by stage: seconds of work and the instant of the last event's end."""

    events: tuple[Event, ...]
    busy: tuple[float, ...]
    end_of_stage: tuple[float, ...]

    @property
    def makespan(self) -> float:
        """Seconds until the last stage is done."""
        return max(self.end_of_stage)

    @property
    def bubble(self) -> tuple[float, ...]:
        """Seconds each stage waits, until the last one is done."""
        return tuple(self.makespan - busy for busy in self.busy)


def simulate_pipeline(
    schedule: str,
    forward: Sequence[float],
    backward: Sequence[float],
    send: Sequence[float],
    microbatches: int,
) -> Timeline:
    """Timeline of one step: seconds of each stage for one microbatch, and of each link.

    ``send[s]`` is what a message between stages s and s + 1 takes, either way.
    """
    stages = len(forward)
    assert len(backward) == stages and len(send) == stages - 1
    seconds = {ActionKind.FORWARD: forward, ActionKind.BACKWARD: backward}
    queues = [order(schedule, stage, stages, microbatches) for stage in range(stages)]
    position = [0] * stages
    free_at = [0.0] * stages
    busy = [0.0] * stages
    link_free: dict[tuple[int, ActionKind], float] = {}
    arrived: dict[tuple[int, ActionKind, int], float] = {
        (0, ActionKind.FORWARD, microbatch): 0.0 for microbatch in range(microbatches)
    }
    events: list[Event] = []
    instants: list[tuple[float, int]] = [(0.0, 0)]
    while instants:
        now, stage = heapq.heappop(instants)
        if free_at[stage] > now or position[stage] == len(queues[stage]):
            continue
        action = queues[stage][position[stage]]
        if arrived.get((stage, action.kind, action.microbatch), now + 1.0) > now:
            continue
        end = now + seconds[action.kind][stage]
        position[stage] += 1
        free_at[stage] = end
        busy[stage] += end - now
        events.append(Event(action, now, end))
        heapq.heappush(instants, (end, stage))
        target, kind, link = _recipient(action, stages)
        if target < 0:
            continue
        arrival = end
        if target != stage:
            arrival = max(end, link_free.get((link, kind), 0.0)) + send[link]
            link_free[link, kind] = arrival
        arrived[target, kind, action.microbatch] = arrival
        heapq.heappush(instants, (arrival, target))
    assert len(events) == sum(map(len, queues)), "the schedule deadlocks"
    return Timeline(events=tuple(events), busy=tuple(busy), end_of_stage=tuple(free_at))


def _recipient(action: Action, stages: int) -> tuple[int, ActionKind, int]:
    """Stage and kind of the action that an action's result feeds, and the link it crosses.

    The stage is -1 after the last backward.
    """
    if action.kind is ActionKind.BACKWARD:
        return action.stage - 1, ActionKind.BACKWARD, action.stage - 1
    if action.stage == stages - 1:
        return action.stage, ActionKind.BACKWARD, -1
    return action.stage + 1, ActionKind.FORWARD, action.stage
