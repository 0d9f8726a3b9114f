"""Balanced pipelines take exactly as long as their closed forms say.

Times are whole numbers, so sums of floats are exact and equal means equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from autoplan.errors import UsageError
from autoplan.schedules import SCHEDULES, check
from autoplan.simulate import Timeline, simulate_step, stage_of_times

RANKS = (1, 2, 3, 4, 6, 8)
MICROBATCHES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17)
CHUNKS = {"gpipe": (1,), "1f1b": (1,), "zbvzerobubble": (2,), "dualpipev": (2,)}


def grid(schedule: str) -> Iterator[tuple[int, int, int]]:
    """Ranks, stages per rank and microbatches that the schedule accepts."""
    for ranks, per_rank, microbatches in itertools.product(
        RANKS, CHUNKS.get(schedule, (1, 2, 3, 4)), MICROBATCHES
    ):
        try:
            check(schedule, ranks, microbatches, per_rank)
        except UsageError:
            continue
        yield ranks, per_rank, microbatches


def balanced(
    schedule: str,
    ranks: int,
    per_rank: int,
    microbatches: int,
    forward: float,
    backward: float,
    backward_input: float,
) -> Timeline:
    stage = stage_of_times(forward, backward, backward_input=backward_input)
    return simulate_step(
        schedule, [stage] * (ranks * per_rank), ranks=ranks, microbatches=microbatches
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved1f1b", "loopedbfs"])
def test_full_backwards(schedule: str) -> None:
    """``(m v + p - 1)`` turns of a stage; with fewer microbatches than ranks ``p v + m - 1``."""
    forward, backward = 3.0, 5.0
    for ranks, per_rank, microbatches in grid(schedule):
        timeline = balanced(schedule, ranks, per_rank, microbatches, forward, backward, 2.0)
        turns = microbatches * per_rank + ranks - 1
        if microbatches < ranks:
            turns = ranks * per_rank + microbatches - 1
        assert timeline.makespan == turns * (forward + backward)
        work = microbatches * per_rank * (forward + backward)
        assert timeline.busy == (work,) * ranks
        assert timeline.bubble == (timeline.makespan - work,) * ranks
        if microbatches >= ranks:
            share = (ranks - 1) / (microbatches * per_rank + ranks - 1)
            overhead = (ranks - 1) / (microbatches * per_rank)
            assert timeline.bubble_share == pytest.approx(share, rel=1e-12)
            assert timeline.bubble_overhead == pytest.approx(overhead, rel=1e-12)


def test_bubble_shares_of_looped_schedules() -> None:
    for per_rank, share in ((1, 0.15789), (2, 0.08571), (4, 0.04478)):
        for schedule in ("interleaved1f1b", "loopedbfs"):
            timeline = balanced(schedule, 4, per_rank, 16, 1.0, 2.0, 1.0)
            assert timeline.bubble_share == pytest.approx(share, abs=5e-6)


@pytest.mark.parametrize(
    ("forward", "inputs", "weights"), [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (4.0, 5.0, 2.0)]
)
def test_interleaved_zero_bubble(forward: float, inputs: float, weights: float) -> None:
    """Bubble of ZB-H1, Qi et al. 2023, table 1: ``(p - 1) (F + I - W)``, of a stage when looped.

    It asks for F >= W, else parameters' gradients get in the way of what other ranks wait for.
    """
    for ranks, per_rank, microbatches in grid("interleavedzerobubble"):
        if microbatches < ranks:
            continue
        timeline = balanced(
            "interleavedzerobubble",
            ranks,
            per_rank,
            microbatches,
            forward,
            inputs + weights,
            inputs,
        )
        work = microbatches * per_rank * (forward + inputs + weights)
        bubble = (ranks - 1) * (forward + inputs - weights)
        assert timeline.makespan == work + bubble
        assert timeline.busy == (work,) * ranks


def test_zero_bubble_v_only_waits_for_the_first_forward() -> None:
    """With F = I = W no rank is idle between its first and its last action."""
    for ranks, per_rank, microbatches in grid("zbvzerobubble"):
        if microbatches < 2 * ranks - 1:
            continue
        timeline = balanced("zbvzerobubble", ranks, per_rank, microbatches, 2.0, 4.0, 2.0)
        assert timeline.makespan == 2 * microbatches * 6.0 + (ranks - 1) * 2.0
        assert timeline.awaiting_message == tuple(2.0 * rank for rank in range(ranks))


@pytest.mark.parametrize(
    ("forward", "inputs", "weights"), [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (6.0, 6.0, 1.0)]
)
def test_dualpipev(forward: float, inputs: float, weights: float) -> None:
    """Bubble of DeepSeek's table: ``(p - 1) (F&B + B - 3 W)`` with B = I + W.

    A pair takes F + B, as torch runs one after the other. The form asks for F = I >= W.
    """
    for ranks, per_rank, microbatches in grid("dualpipev"):
        backward = inputs + weights
        timeline = balanced("dualpipev", ranks, per_rank, microbatches, forward, backward, inputs)
        work = 2 * microbatches * (forward + backward)
        bubble = (ranks - 1) * (forward + backward + backward - 3 * weights)
        assert timeline.makespan == work + bubble


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parts_of_a_rank_sum_to_the_step(schedule: str) -> None:
    for ranks, per_rank, microbatches in grid(schedule):
        timeline = balanced(schedule, ranks, per_rank, microbatches, 3.0, 7.0, 3.0)
        for rank in range(ranks):
            parts = (
                timeline.busy[rank],
                timeline.awaiting_message[rank],
                timeline.awaiting_gather[rank],
                timeline.awaiting_reduction[rank],
                timeline.awaiting_ranks[rank],
            )
            assert sum(parts) == timeline.makespan
            assert min(parts) >= 0.0
