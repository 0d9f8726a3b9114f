"""Messages that both ranks wait for, against hand-counted steps."""

from __future__ import annotations

import random

import pytest

from autoplan.errors import UsageError
from autoplan.simulate import Messages, StageCost, Timeline, simulate_step, stage_of_times


def _step(
    schedule: str, stages: list[StageCost], microbatches: int, messages: Messages = Messages.AWAITED
) -> Timeline:
    return simulate_step(
        schedule, stages, ranks=len(stages), microbatches=microbatches, messages=messages
    )


def _balanced(ranks: int, send: float) -> list[StageCost]:
    return [stage_of_times(2.0, 4.0, send_output=send, send_gradient=send)] * ranks


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_free_messages_are_awaited_for_nothing(schedule: str) -> None:
    """A message of no length leaves when the receiver comes, which GPipe and 1F1B do in time."""
    for ranks in (1, 2, 3, 5):
        for microbatches in (1, 2, 5, 8):
            awaited = _step(schedule, _balanced(ranks, 0.0), microbatches)
            assert awaited.makespan == (microbatches + ranks - 1) * 6.0


def test_a_receiver_of_gpipe_pays_for_every_message() -> None:
    """On two ranks: m messages before forwards, m before backwards, none beside compute.

    The later rank ends its forwards at F + m (c + F); the first then receives m gradients.
    """
    for microbatches in (1, 2, 6):
        awaited = _step("gpipe", _balanced(2, 0.5), microbatches)
        forwards = 2.0 + microbatches * (0.5 + 2.0)
        assert awaited.makespan == forwards + 4.0 + microbatches * (0.5 + 4.0)
        assert awaited.awaiting_message[1] >= microbatches * 0.5


@pytest.mark.parametrize(("ranks", "batches"), [(2, 1), (3, 2), (4, 2)])
def test_batches_of_1f1b_are_in_every_turn(ranks: int, batches: int) -> None:
    """A rank of the middle sends and receives once with each neighbour, the ends with one.

    Both directions of a batch go at the same time, so that a batch takes one message.
    """
    long, short = (_step("1f1b", _balanced(ranks, 0.5), m).makespan for m in (24, 14))
    assert long - short == 10 * (2.0 + 4.0 + batches * 0.5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_waiting_is_never_faster_and_its_parts_sum(schedule: str) -> None:
    rng = random.Random(1)
    for _ in range(100):
        ranks, microbatches = rng.randint(1, 5), rng.randint(1, 9)
        stages = [
            stage_of_times(
                rng.uniform(0, 2),
                rng.uniform(0, 3),
                send_output=rng.uniform(0, 1),
                send_gradient=rng.uniform(0, 1),
            )
            for _ in range(ranks)
        ]
        awaited = _step(schedule, stages, microbatches)
        beside = _step(schedule, stages, microbatches, Messages.BESIDE)
        assert awaited.makespan >= beside.makespan * (1 - 1e-12)
        assert awaited.busy == pytest.approx(beside.busy)
        sent = [event for event in awaited.events if event.stream.startswith("send")]
        assert len(sent) == 2 * (ranks - 1) * microbatches
        for rank in range(ranks):
            parts = (
                awaited.busy[rank],
                awaited.awaiting_message[rank],
                awaited.awaiting_ranks[rank],
            )
            assert sum(parts) == pytest.approx(awaited.makespan, rel=1e-12)


def test_schedules_of_several_stages_do_not_wait() -> None:
    with pytest.raises(UsageError, match="loopedbfs does not wait") as caught:
        simulate_step(
            "loopedbfs", _balanced(4, 0.5), ranks=2, microbatches=4, messages=Messages.AWAITED
        )
    assert "gpipe and 1f1b" in caught.value.hint
