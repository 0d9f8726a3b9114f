"""The event simulation against closed forms and against torch's own schedules."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from autoplan.errors import UsageError
from autoplan.schedules import SCHEDULES, Action, ActionKind, in_flight, order
from autoplan.simulate import Timeline, simulate_pipeline

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def _most_in_flight(timeline: Timeline, stage: int) -> int:
    held = most = 0
    for event in timeline.events:
        if event.action.stage == stage:
            held += 1 if event.action.kind is F else -1
            most = max(most, held)
    return most


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 5), (2, 2), (4, 8), (4, 3), (8, 32)])
def test_balanced_pipeline_takes_the_closed_form(
    schedule: str, stages: int, microbatches: int
) -> None:
    forward, backward = 1.5, 3.0
    timeline = simulate_pipeline(
        schedule, [forward] * stages, [backward] * stages, [0.0] * (stages - 1), microbatches
    )
    expected = (microbatches + stages - 1) * (forward + backward)
    assert timeline.makespan == pytest.approx(expected, rel=1e-12)
    bubble = (stages - 1) * (forward + backward)
    assert timeline.bubble == pytest.approx([bubble] * stages, rel=1e-9)


def test_uneven_gpipe_is_the_sum_and_the_slowest_stage() -> None:
    rng = random.Random(1)
    for _ in range(50):
        stages, microbatches = rng.randint(2, 6), rng.randint(1, 12)
        forward = [rng.uniform(1, 2) for _ in range(stages)]
        backward = [2 * seconds for seconds in forward]
        timeline = simulate_pipeline("gpipe", forward, backward, [0.0] * (stages - 1), microbatches)
        both = [f + b for f, b in zip(forward, backward, strict=True)]
        expected = sum(both) + (microbatches - 1) * max(both)
        assert timeline.makespan == pytest.approx(expected, rel=1e-12)


def test_uneven_1f1b_lies_between_its_bounds() -> None:
    rng = random.Random(2)
    less = 0
    for _ in range(200):
        stages, microbatches = rng.randint(2, 6), rng.randint(1, 16)
        forward = [rng.uniform(0.2, 2) for _ in range(stages)]
        backward = [rng.uniform(0.2, 4) for _ in range(stages)]
        timeline = simulate_pipeline("1f1b", forward, backward, [0.0] * (stages - 1), microbatches)
        both = [f + b for f, b in zip(forward, backward, strict=True)]
        upper = sum(both) + (microbatches - 1) * max(both)
        lower = max(microbatches * t + sum(both[:s]) for s, t in enumerate(both))
        assert lower * (1 - 1e-12) <= timeline.makespan <= upper * (1 + 1e-12)
        less += timeline.makespan < upper * (1 - 1e-6)
    assert less > 20


def test_first_microbatch_crosses_every_link_both_ways() -> None:
    timeline = simulate_pipeline("gpipe", [1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [0.5, 0.25], 1)
    assert timeline.makespan == pytest.approx(15.0 + 2 * 0.75)


def test_slow_link_limits_the_rate() -> None:
    forward = simulate_pipeline("gpipe", [1.0, 1.0], [0.0, 0.0], [5.0], 10)
    # Ten messages of 5 s, one after another, behind the first forward; gradients go back freely.
    received = [e.start for e in forward.events if e.action.stage == 1 and e.action.kind is F]
    assert received == pytest.approx([1.0 + 5.0 * (i + 1) for i in range(10)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_events_respect_order_dependencies_and_in_flight(schedule: str) -> None:
    rng = random.Random(3)
    for _ in range(40):
        stages, microbatches = rng.randint(1, 5), rng.randint(1, 9)
        forward = [rng.uniform(0.1, 2) for _ in range(stages)]
        backward = [rng.uniform(0.1, 2) for _ in range(stages)]
        send = [rng.uniform(0, 1) for _ in range(stages - 1)]
        timeline = simulate_pipeline(schedule, forward, backward, send, microbatches)
        end = {event.action: event.end for event in timeline.events}
        assert len(end) == 2 * stages * microbatches
        for event in timeline.events:
            action = event.action
            if action.kind is F and action.stage:
                before = Action(action.stage - 1, F, action.microbatch)
                assert event.start >= end[before] + send[action.stage - 1] - 1e-9
            if action.kind is B and action.stage < stages - 1:
                before = Action(action.stage + 1, B, action.microbatch)
                assert event.start >= end[before] + send[action.stage] - 1e-9
        for stage in range(stages):
            events = [e for e in timeline.events if e.action.stage == stage]
            assert [e.action for e in events] == list(order(schedule, stage, stages, microbatches))
            assert all(a.end <= b.start for a, b in itertools.pairwise(events))
            law = in_flight(schedule, stage, stages, microbatches)
            assert _most_in_flight(timeline, stage) == law
            assert timeline.busy[stage] == pytest.approx(
                microbatches * (forward[stage] + backward[stage])
            )


class _Recorder:
    """A stage that notes what torch's schedule asks of it."""

    def __init__(self, index: int) -> None:
        self.stage_index = index
        self.actions: list[Action] = []

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.actions.append(Action(self.stage_index, F, microbatch))

    def backward_one_chunk(self, microbatch: int, **_: Any) -> None:
        self.actions.append(Action(self.stage_index, B, microbatch))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (3, 7), (4, 8)])
def test_order_is_the_one_torch_steps_in(schedule: str, stages: int, microbatches: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}[schedule]
    for index in range(stages):
        stage = _Recorder(index)
        stepped = object.__new__(kind)
        stepped.__dict__.update(
            _stage=stage, _num_stages=stages, _n_microbatches=microbatches, scale_grads=True
        )
        for hook in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss"):
            stepped.__dict__[hook] = lambda *_, **__: None
        stepped.__dict__["_update_losses"] = lambda *_, **__: None
        stepped.__dict__["_check_inputs"] = lambda *_, **__: (
            [()] * microbatches,
            [SimpleNamespace()] * microbatches,
        )
        stepped._step_microbatches()
        assert tuple(stage.actions) == order(schedule, index, stages, microbatches)


