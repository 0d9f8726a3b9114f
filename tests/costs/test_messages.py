"""What a stage holds of its messages, against the handles and lists of torch's own loops."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.messages import SentMessages
from autoplan.schedules import ActionKind, order, single_actions

KEPT = 1000  # more than both messages
SIZES = st.integers(0, KEPT // 2)


@given(
    forward=SIZES,
    backward=SIZES,
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    ranks=st.integers(1, 5),
    more=st.integers(0, 6),
    stage=st.integers(0, 4),
    host=st.booleans(),
)
def test_later_backwards_hold_what_torchs_loops_leave(
    forward, backward, schedule, ranks, more, stage, host
):
    stage, microbatches = stage % ranks, ranks + more
    actions = list(single_actions(order(schedule, stage, ranks, microbatches)))
    forwards = [action.microbatch for action in actions if action.kind is ActionKind.FORWARD]
    warm = min(microbatches, ranks - stage)
    # Whose handles are there in backwards, and from which microbatch's output on they aren't.
    handles = forwards if schedule == "gpipe" else forwards[: warm - 1][-1:]
    flight, most, done = 0, 0, 0
    for at, action in enumerate(actions):
        if action.kind is ActionKind.FORWARD:
            flight += 1
            continue
        if schedule == "1f1b" and ActionKind.FORWARD not in {a.kind for a in actions[at - 1 :]}:
            handles = []  # the handle of a gradient takes the variable
        stale = sum(1 for one in handles if one < done) if host else 0
        left = (backward + stale * forward) if done else 0
        if done:
            most = max(most, flight * KEPT + left)
        flight -= 1
        done += 1
    in_flight = microbatches if schedule == "gpipe" else warm
    later = SentMessages(forward, backward, host=host).later_backwards(in_flight, microbatches)
    found = max((held * KEPT + left for held, left in later), default=0)
    if schedule == "1f1b" and in_flight == microbatches > 1 and host:
        assert found == most + forward  # as in GPipe
    else:
        assert found == most
