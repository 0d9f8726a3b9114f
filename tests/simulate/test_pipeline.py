"""Pipelines of stages and links: uneven ones against bounds, and against a slow oracle."""

from __future__ import annotations

import itertools
import random

import pytest

from autoplan.schedules import (
    SCHEDULES,
    Action,
    ActionKind,
    Overlapped,
    Step,
    check,
    in_flight,
    order,
    single_actions,
    stages_of,
)
from autoplan.simulate import COMPUTE, Event, Timeline, simulate_pipeline

F, B, I, W = ActionKind  # noqa: E741


def kernels(timeline: Timeline) -> list[Event]:
    return [event for event in timeline.events if event.stream == COMPUTE and event.action]


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
    timeline = simulate_pipeline("gpipe", [1.0, 1.0], [0.0, 0.0], [5.0], 10)
    # Ten messages of 5 s, one after another, behind the first forward; gradients go back freely.
    received = [e.start for e in kernels(timeline) if str(e.action).startswith("1F")]
    assert received == pytest.approx([1.0 + 5.0 * (i + 1) for i in range(10)])
    sent = [event for event in timeline.events if event.stream == "send to rank 1"]
    assert [event.label for event in sent] == [f"result of 0F{m}" for m in range(10)]
    assert all(event.end - event.start == 5.0 for event in sent)


def test_two_directions_of_a_link_do_not_wait_for_each_other() -> None:
    """With two ranks as a loop, one direction carries outputs and gradients in turn."""
    timeline = simulate_pipeline("loopedbfs", [1.0] * 4, [1.0] * 4, [3.0] * 3, 1, ranks=2)
    assert timeline.makespan == 8 * 1.0 + 6 * 3.0


def _random_case(rng: random.Random, schedule: str) -> tuple[int, int, int]:
    """Ranks, stages per rank and microbatches that the schedule accepts."""
    while True:
        ranks, microbatches = rng.randint(1, 5), rng.randint(1, 13)
        per_rank = {"gpipe": 1, "1f1b": 1, "zbvzerobubble": 2, "dualpipev": 2}.get(
            schedule, rng.randint(1, 3)
        )
        try:
            check(schedule, ranks, microbatches, per_rank)
        except Exception:
            continue
        return ranks, per_rank, microbatches


def _least_times(
    orders: list[tuple[Step, ...]], seconds: dict[tuple[int, ActionKind], float], send: list[float]
) -> dict[Action, float]:
    """Ends of all actions: the least solution of what each must wait for, found by iteration."""
    rank_of = {a.stage: rank for rank, o in enumerate(orders) for a in single_actions(o)}
    last = max(rank_of)
    end: dict[Action, float] = {a: 0.0 for o in orders for a in single_actions(o)}
    arrival: dict[Action, float] = {}
    while True:
        before = dict(end)
        for rank, steps in enumerate(orders):
            free = 0.0
            links: dict[int, float] = {}
            for step in steps:
                actions = list(single_actions((step,)))
                for action in actions:
                    feeds = {F: (-1, (F,)), B: (1, (B, I)), I: (1, (B, I)), W: (0, ())}
                    offset, kinds = feeds[action.kind]
                    source = action.stage + offset
                    for kind in kinds if 0 <= source <= last else ():
                        feeder = Action(source, kind, action.microbatch)
                        free = max(free, arrival.get(feeder, 0.0))
                    free += seconds[action.stage, action.kind]
                    end[action] = free
                for action in actions:
                    target = action.stage + (1 if action.kind is F else -1)
                    if action.kind is W or not 0 <= target <= last:
                        continue
                    arrival[action] = end[action]
                    if rank_of[target] != rank:
                        start = max(free, links.get(rank_of[target], 0.0))
                        links[rank_of[target]] = start + send[min(action.stage, target)]
                        arrival[action] = links[rank_of[target]]
        if end == before:
            return end


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_times_are_the_least_that_order_and_messages_allow(schedule: str) -> None:
    rng = random.Random(3)
    for _ in range(25):
        ranks, per_rank, microbatches = _random_case(rng, schedule)
        stages = ranks * per_rank
        # Eighths add up exactly, so that equal means equal.
        forward = [rng.randint(1, 16) / 8 for _ in range(stages)]
        backward = [rng.randint(1, 16) / 4 for _ in range(stages)]
        send = [rng.randint(0, 8) / 8 for _ in range(stages - 1)]
        timeline = simulate_pipeline(schedule, forward, backward, send, microbatches, ranks)
        seconds = {}
        for stage in range(stages):
            seconds[stage, F], seconds[stage, B] = forward[stage], backward[stage]
            seconds[stage, I] = seconds[stage, W] = backward[stage] / 2
        orders = [order(schedule, rank, ranks, microbatches, per_rank) for rank in range(ranks)]
        ends = _least_times(orders, seconds, send)
        assert {event.action: event.end for event in kernels(timeline)} == ends
        assert timeline.makespan == max(ends.values())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_run_their_order_and_hold_what_the_law_says(schedule: str) -> None:
    rng = random.Random(4)
    for _ in range(25):
        ranks, per_rank, microbatches = _random_case(rng, schedule)
        stages = ranks * per_rank
        forward = [rng.uniform(0.1, 2) for _ in range(stages)]
        backward = [rng.uniform(0.1, 2) for _ in range(stages)]
        send = [rng.uniform(0, 1) for _ in range(stages - 1)]
        timeline = simulate_pipeline(schedule, forward, backward, send, microbatches, ranks)
        for rank in range(ranks):
            events = [e for e in kernels(timeline) if e.rank == rank]
            assert all(a.end <= b.start for a, b in itertools.pairwise(events))
            steps = order(schedule, rank, ranks, microbatches, per_rank)
            assert [e.action for e in events] == list(single_actions(steps))
            held = most = 0
            for event in events:
                if event.action and event.action.kind is F:
                    held += 1
                elif event.action and event.action.kind is not I:
                    held -= 1
                most = max(most, held)
            assert most == in_flight(schedule, rank, ranks, microbatches, per_rank)
            mine = stages_of(schedule, rank, ranks, per_rank)
            work = microbatches * sum(forward[s] + backward[s] for s in mine)
            assert timeline.busy[rank] == pytest.approx(work)
            assert timeline.seconds_of(COMPUTE)[rank] == pytest.approx(work)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_longer_actions_and_messages_never_shorten_the_step(schedule: str) -> None:
    rng = random.Random(5)
    for _ in range(40):
        ranks, per_rank, microbatches = _random_case(rng, schedule)
        stages = ranks * per_rank
        times = [[rng.uniform(0.1, 2) for _ in range(stages)] for _ in range(3)]
        before = simulate_pipeline(schedule, *times[:2], times[2][:-1], microbatches, ranks)
        longer = [[seconds + rng.choice([0.0, 0.3]) for seconds in part] for part in times]
        after = simulate_pipeline(schedule, *longer[:2], longer[2][:-1], microbatches, ranks)
        assert after.makespan >= before.makespan * (1 - 1e-12)


def test_a_pair_sends_both_results_after_its_second_action() -> None:
    timeline = simulate_pipeline("dualpipev", [1.0] * 4, [2.0] * 4, [0.25] * 3, 6, ranks=2)
    ends = {event.action: event.end for event in kernels(timeline)}
    starts = {e.action: e.start for e in timeline.events if e.stream.startswith("send")}
    pairs = [s for s in order("dualpipev", 0, 2, 6, 2) if isinstance(s, Overlapped)]
    assert pairs
    for pair in pairs:
        for action in (pair.forward, pair.backward):
            if action in starts:
                assert starts[action] >= ends[pair.backward]
