"""Orders, stage placements and in-flight counts against torch's own schedules."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autoplan.errors import UsageError
from autoplan.schedules import (
    SCHEDULES,
    Action,
    ActionKind,
    Overlapped,
    check,
    held_by_stages,
    held_moments,
    in_flight,
    most_held,
    most_in_flight,
    most_pending,
    order,
    ranks_of_stages,
    single_actions,
    stage_flights,
    stages_of,
)

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

F, B, I, W = ActionKind  # noqa: E741
ONE_STAGE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
LOOPED = {
    "interleaved1f1b": "ScheduleInterleaved1F1B",
    "loopedbfs": "ScheduleLoopedBFS",
    "interleavedzerobubble": "ScheduleInterleavedZeroBubble",
}
V_SHAPED = {"zbvzerobubble": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV"}
NAMES = ONE_STAGE | LOOPED | V_SHAPED
RANKS = (1, 2, 3, 4, 8)
MICROBATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16)


def chunks(schedule: str) -> tuple[int, ...]:
    if schedule in ONE_STAGE:
        return (1,)
    return (1, 2, 3) if schedule in LOOPED else (2,)


def cases(schedule: str) -> list[tuple[int, int, int]]:
    """Ranks, stages per rank and microbatches."""
    return list(itertools.product(RANKS, chunks(schedule), MICROBATCHES))


def accepted(schedule: str) -> list[tuple[int, int, int]]:
    found = []
    for ranks, stages_per_rank, microbatches in cases(schedule):
        with contextlib.suppress(UsageError):
            check(schedule, ranks, microbatches, stages_per_rank)
            found.append((ranks, stages_per_rank, microbatches))
    return found


@cache
def torch_order(
    schedule: str, ranks: int, stages_per_rank: int, microbatches: int
) -> dict[int, list[Any]]:
    """What the constructor of torch's schedule computes for stages that are only numbers."""
    stages = [
        SimpleNamespace(
            num_stages=ranks * stages_per_rank, group_size=ranks, group_rank=0, submod=None
        )
        for _ in range(stages_per_rank)
    ]
    kind = getattr(torch_schedules, NAMES[schedule])
    built = kind(stages if schedule not in ONE_STAGE else stages[0], microbatches)
    if schedule in ONE_STAGE:
        return {}
    return {
        rank: [action for action in actions if action is not None]
        for rank, actions in built.pipeline_order.items()
    }


@pytest.mark.parametrize("schedule", LOOPED | V_SHAPED)
def test_order_is_the_one_torch_computes(schedule: str) -> None:
    grid = accepted(schedule)
    assert len(grid) >= 20
    for ranks, stages_per_rank, microbatches in grid:
        theirs = torch_order(schedule, ranks, stages_per_rank, microbatches)
        for rank in range(ranks):
            ours = order(schedule, rank, ranks, microbatches, stages_per_rank)
            assert [str(step) for step in ours] == [str(action) for action in theirs[rank]]


@pytest.mark.parametrize("schedule", NAMES)
def test_what_torch_refuses_is_refused_with_the_numbers(schedule: str) -> None:
    refused = sorted(set(cases(schedule)) - set(accepted(schedule)))
    assert bool(refused) == (schedule not in ("gpipe", "loopedbfs", "zbvzerobubble"))
    for ranks, stages_per_rank, microbatches in cases(schedule):
        if (ranks, stages_per_rank, microbatches) not in refused:
            torch_order(schedule, ranks, stages_per_rank, microbatches)
            continue
        with pytest.raises((ValueError, AssertionError)):
            torch_order(schedule, ranks, stages_per_rank, microbatches)
        with pytest.raises(UsageError, match=rf"{schedule}.*\b{microbatches}\b") as caught:
            check(schedule, ranks, microbatches, stages_per_rank)
        assert "microbatches" in caught.value.hint


@pytest.mark.parametrize(
    ("schedule", "stages_per_rank"),
    [("gpipe", 2), ("1f1b", 2), ("zbvzerobubble", 1), ("zbvzerobubble", 3), ("dualpipev", 1)],
)
def test_wrong_number_of_stages_on_a_rank(schedule: str, stages_per_rank: int) -> None:
    with pytest.raises(UsageError, match=rf"stages? on a rank, not {stages_per_rank}"):
        order(schedule, 0, 2, 8, stages_per_rank)


def test_hint_for_rounds_names_counts_that_work() -> None:
    with pytest.raises(UsageError, match="9 is not a multiple of 2") as caught:
        check("interleaved1f1b", 4, 9, 2)
    assert "8 or 10" in caught.value.hint
    check("interleaved1f1b", 4, 8, 2)
    check("interleaved1f1b", 4, 10, 2)


def test_unknown_schedule_is_named() -> None:
    with pytest.raises(UsageError, match="zigzag"):
        order("zigzag", 0, 2, 2)


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


@pytest.mark.parametrize("schedule", ONE_STAGE)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (3, 7), (4, 8), (4, 3)])
def test_order_is_the_one_torch_steps_in(schedule: str, ranks: int, microbatches: int) -> None:
    kind = getattr(torch_schedules, NAMES[schedule])
    for index in range(ranks):
        stage = _Recorder(index)
        stepped = object.__new__(kind)
        stepped.__dict__.update(
            _stage=stage, _num_stages=ranks, _n_microbatches=microbatches, scale_grads=True
        )
        for hook in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss"):
            stepped.__dict__[hook] = lambda *_, **__: None
        stepped.__dict__["_update_losses"] = lambda *_, **__: None
        stepped.__dict__["_check_inputs"] = lambda *_, **__: (
            [()] * microbatches,
            [SimpleNamespace()] * microbatches,
        )
        stepped._step_microbatches()
        assert tuple(stage.actions) == order(schedule, index, ranks, microbatches)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_microbatch_passes_every_stage_once_and_in_order(schedule: str) -> None:
    for ranks, stages_per_rank, microbatches in accepted(schedule):
        held = []
        for rank in range(ranks):
            stages = stages_of(schedule, rank, ranks, stages_per_rank)
            held.extend(stages)
            steps = order(schedule, rank, ranks, microbatches, stages_per_rank)
            seen: Counter[tuple[int, int]] = Counter()
            for action in single_actions(steps):
                place = action.stage, action.microbatch
                before = {F: 0, B: 1, I: 1, W: 2}[action.kind]
                assert seen[place] == before
                seen[place] += 3 - before if action.kind in (B, W) else 1
            assert set(seen) == set(itertools.product(stages, range(microbatches)))
            assert set(seen.values()) == {3}
        assert sorted(held) == list(range(ranks * stages_per_rank))


@pytest.mark.parametrize("schedule", LOOPED | V_SHAPED)
def test_in_flight_is_counted_as_in_torch_own_order(schedule: str) -> None:
    kinds = torch_schedules._ComputationType
    for ranks, stages_per_rank, microbatches in accepted(schedule):
        theirs = torch_order(schedule, ranks, stages_per_rank, microbatches)
        for rank, actions in theirs.items():
            alive: set[tuple[int, int]] = set()
            most = 0
            for action in actions:
                for part in action.sub_actions or (action,):
                    place = part.stage_index, part.microbatch_index
                    if part.computation_type == kinds.FORWARD:
                        alive.add(place)
                    elif part.computation_type != kinds.BACKWARD_INPUT:
                        alive.remove(place)
                    most = max(most, len(alive))
            assert not alive
            assert in_flight(schedule, rank, ranks, microbatches, stages_per_rank) == most


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_in_flight_law_is_that_of_the_order(schedule: str) -> None:
    for ranks, stages_per_rank, microbatches in accepted(schedule):
        for rank in range(ranks):
            steps = order(schedule, rank, ranks, microbatches, stages_per_rank)
            law = in_flight(schedule, rank, ranks, microbatches, stages_per_rank)
            assert law == most_in_flight(steps)


def test_in_flight_of_the_papers() -> None:
    interleaved = [in_flight("interleaved1f1b", rank, 4, 16, 2) for rank in range(4)]
    assert interleaved == [11, 9, 7, 5]
    assert [in_flight("loopedbfs", rank, 4, 16, 2) for rank in range(4)] == [32] * 4
    # ZB-H1 holds what 1F1B's first rank does; ZB-V as much, in halves of a rank's layers.
    assert [in_flight("interleavedzerobubble", rank, 4, 16) for rank in range(4)] == [4] * 4
    assert [in_flight("zbvzerobubble", rank, 4, 16, 2) for rank in range(4)] == [8] * 4
    assert [in_flight("dualpipev", rank, 4, 16, 2) for rank in range(4)] == [9, 9, 9, 9]


def test_bytes_held_follow_the_stages_and_the_split() -> None:
    steps = order("interleavedzerobubble", 1, 2, 4, 2)
    assert most_held(steps, lambda _: 1, lambda _: 0) == most_in_flight(steps)
    assert most_held(steps, lambda _: 0, lambda _: 1) == most_pending(steps) > 0
    assert most_held(steps, lambda stage: 10 if stage == 3 else 0, lambda _: 0) == 10 * max(
        most_in_flight([a for a in steps if isinstance(a, Action) and a.stage == 3]), 0
    )


def test_pairs_of_dualpipev_are_a_forward_and_a_full_backward_of_other_stages() -> None:
    steps = order("dualpipev", 1, 4, 12, 2)
    pairs = [step for step in steps if isinstance(step, Overlapped)]
    assert len(pairs) == 2 * (12 - 8 + 2) + 2
    for pair in pairs:
        assert pair.forward.kind is F and pair.backward.kind is B
        assert {pair.forward.stage, pair.backward.stage} == {1, 6}


class _Saved:
    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def test_backward_for_the_input_frees_nothing_that_parameters_need_in_torch() -> None:
    torch = pytest.importorskip("torch")
    halves = pytest.importorskip("torch.distributed.pipelining._backward")
    width = 16
    net = torch.nn.Sequential(
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, 4 * width),
        torch.nn.GELU(),
        torch.nn.Linear(4 * width, width),
    )
    x = torch.randn(8, width, requires_grad=True)
    saved: list[Any] = []

    def pack(tensor: Any) -> _Saved:
        box = _Saved(tensor.detach())
        saved.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        y = net(x)
    alive = sum(box() is not None for box in saved)
    _, groups = halves.stage_backward_input([y], [torch.ones_like(y)], [x], net.parameters())
    gc.collect()
    assert sum(box() is not None for box in saved) == alive == len(saved)
    halves.stage_backward_weight(net.parameters(), groups)
    del y, groups
    gc.collect()
    assert not any(box() is not None for box in saved)


@pytest.mark.parametrize("schedule", NAMES)
def test_what_each_stage_holds(schedule: str) -> None:
    """Counted by going through the orders, one rank and stage at a time."""
    for ranks, each, microbatches in accepted(schedule):
        if schedule == "1f1b" and microbatches < ranks:
            continue
        found = stage_flights(schedule, ranks, microbatches, each)
        places = ranks_of_stages(schedule, ranks, each)
        for rank in range(ranks):
            stages = stages_of(schedule, rank, ranks, each)
            assert [stage for stage, on in enumerate(places) if on == rank] == sorted(stages)
            held = dict.fromkeys(stages, 0)
            most, together = dict(held), 0
            moments = set()
            for action in single_actions(order(schedule, rank, ranks, microbatches, each)):
                freed = -1 if action.kind in (B, W) else 0
                held[action.stage] += 1 if action.kind is F else freed
                most[action.stage] = max(most[action.stage], held[action.stage])
                together = max(together, min(held.values()))
                moments.add(tuple(held[stage] for stage in stages))
            assert [found[stage] for stage in stages] == [most[stage] for stage in stages]
            assert held_by_stages(schedule, rank, ranks, microbatches, each) == together >= 1
            fullest = held_moments(schedule, rank, ranks, microbatches, each)
            assert {*fullest} <= moments
            for moment in moments:
                assert any(np.all(np.less_equal(moment, more)) for more in fullest)
