"""Stage cuts with a choice of points against enumeration of every cut and choice."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from autoplan.errors import UsageError
from autoplan.schedules import SCHEDULES, in_flight
from autoplan.simulate import simulate_pipeline
from autoplan.solver.chain import ChainItem, Point
from autoplan.solver.inter import StageCut, cut_stages, turns_of
from tests.solver.chains import (
    Case,
    assignments,
    cuts,
    every_outcome,
    outcomes,
    random_case,
    random_point,
)


def _cut(case: Case, limit: int) -> StageCut:
    return cut_stages(
        case.items,
        stages=case.stages,
        microbatches=case.microbatches,
        in_flight=case.flights,
        memory_limit=limit,
        turns=case.turns,
    )


def _is_the_best(case: Case, limit: int) -> str:
    """Compare a cut with all others; whether memory was plenty, bound it, or was too little."""
    seconds, peaks = every_outcome(case)
    cut = _cut(case, limit)
    assert cut.ranges in set(cuts(len(case.items), case.stages))
    (own,), (peak,) = outcomes(case, cut.ranges, np.array([cut.choices]))
    assert cut.objective == pytest.approx(own, rel=1e-12)
    assert cut.peak_memory == peak
    fitting = peaks <= limit
    if not fitting.any():
        assert cut.peak_memory == peaks.min()
        assert cut.shortfall == cut.peak_memory - limit > 0
        return "none"
    best = seconds[fitting].min()
    assert cut.objective == pytest.approx(best, rel=1e-12)
    assert cut.shortfall == 0
    return "bound" if seconds.min() < best * (1 - 1e-9) else "plenty"


def test_points_of_given_stages_are_the_best_of_all() -> None:
    rng = random.Random("given stages")
    fitted = []
    for _ in range(40):
        case = random_case(rng, points=rng.randint(1, 3), most=6)
        ranges = rng.choice(list(cuts(len(case.items), case.stages)))
        seconds, peaks = outcomes(case, ranges, assignments(case.items))
        limit = int(np.quantile(peaks, rng.choice((0.0, 0.3, 1.0)))) - rng.randint(0, 1)
        cut = cut_stages(
            case.items,
            stages=case.stages,
            microbatches=case.microbatches,
            in_flight=case.flights,
            memory_limit=limit,
            ranges=ranges,
        )
        assert cut.ranges == ranges
        fitting = peaks <= limit
        fitted.append(bool(fitting.any()))
        if fitted[-1]:
            assert cut.objective == pytest.approx(seconds[fitting].min(), rel=1e-12)
            assert cut.shortfall == 0
        else:
            assert cut.peak_memory == peaks.min()
            assert cut.shortfall == cut.peak_memory - limit > 0
    assert any(fitted) and not all(fitted)


@pytest.mark.parametrize("points", [1, 2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cut_and_choice_are_the_best_of_all(schedule: str, points: int) -> None:
    rng = random.Random(f"{schedule} {points}")
    kinds = {"plenty": 0, "bound": 0, "none": 0}
    for _ in range(30):
        case = random_case(rng, points=points, most=7, schedule=schedule)
        peaks = np.unique(every_outcome(case)[1])
        share = rng.choice((0.0, 0.0, 0.1, 0.2, 0.4, 1.0))
        limit = int(peaks[round(share * (len(peaks) - 1))]) - rng.randint(0, 1)
        kinds[_is_the_best(case, limit)] += 1
    assert all(kinds.values()), kinds


@pytest.mark.parametrize("seed", range(10))
def test_cut_is_the_best_for_ranks_that_take_turns(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng, points=2, most=7)
    case = replace(case, turns=case.microbatches + rng.randint(1, 9))
    peaks = np.unique(every_outcome(case)[1])
    _is_the_best(case, int(rng.choice(peaks[len(peaks) // 4 :].tolist())))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_turns_are_those_of_equal_stages(ranks: int, each: int) -> None:
    """A step of interleaved 1F1B, event by event, is what the cut minimises."""
    stages, microbatches = ranks * each, 3 * ranks
    timeline = simulate_pipeline(
        "interleaved1f1b", [1.0] * stages, [2.0] * stages, [0.0] * (stages - 1), microbatches, ranks
    )
    turns = turns_of(ranks, each, microbatches)
    assert timeline.makespan == pytest.approx(stages * 3.0 + (turns - 1) * 3.0)


@pytest.mark.parametrize("seed", range(8))
def test_identical_blocks_are_mixed_exactly(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng, points=1, most=4)
    block = ChainItem(
        points=tuple(random_point(rng) for _ in range(3)), boundary=rng.randint(0, 8), send=0.1
    )
    for count in range(case.stages, 9):
        alike = replace(case, items=(block,) * count)
        peaks = np.unique(every_outcome(alike)[1])
        for limit in rng.sample(peaks.tolist(), min(3, len(peaks))):
            _is_the_best(alike, limit)


@pytest.mark.parametrize("seed", range(20))
def test_more_memory_and_more_points_are_never_slower(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng, points=3, most=24)
    extra = tuple(random_point(rng) for _ in range(2))
    richer = replace(
        case, items=tuple(replace(item, points=item.points + extra) for item in case.items)
    )
    least = _cut(case, 0).peak_memory
    before = None
    for limit in range(least, 3 * least, max(1, least // 7)):
        cut, more = _cut(case, limit), _cut(richer, limit)
        assert cut.shortfall == more.shortfall == 0
        assert more.objective <= cut.objective * (1 + 1e-12)
        assert before is None or cut.objective <= before * (1 + 1e-12)
        before = cut.objective
    assert _cut(case, least - 1).shortfall == 1
    assert _cut(richer, 0).peak_memory <= least


def _point(**changes: float) -> Point:
    fields = {"forward": 1.0, "backward": 2.0, "static": 100, "activation": 10, "transient": 5}
    return Point(**{**fields, **changes})  # type: ignore[arg-type]


def _block(*points: Point) -> ChainItem:
    return ChainItem(points=points, boundary=1, send=0.001)


def test_equal_blocks_are_cut_evenly() -> None:
    ends = _point(forward=0.1, backward=0.1), _point(forward=2.0)
    items = [_block(ends[0]), *[_block(_point())] * 128, _block(ends[1])]
    cut = cut_stages(
        items,
        stages=16,
        microbatches=64,
        in_flight=[in_flight("1f1b", s, 16, 64) for s in range(16)],
        memory_limit=10**9,
    )
    lengths = [last - first for first, last in cut.ranges]
    assert max(lengths[1:-1]) <= 9


def test_early_stages_get_fewer_blocks_when_activations_bind() -> None:
    items = [_block(_point(activation=100, static=0))] * 8
    cut = cut_stages(items, stages=2, microbatches=2, in_flight=[2, 1], memory_limit=100 * 6 + 10)
    assert cut.shortfall == 0
    assert cut.ranges == ((0, 3), (3, 8))


def test_memory_may_force_a_stage_far_longer_than_the_others() -> None:
    items = [_block(_point(static=0, activation=1, transient=0))] * 60
    cut = cut_stages(items, stages=2, microbatches=16, in_flight=[16, 1], memory_limit=115)
    assert cut.shortfall == 0
    assert cut.ranges == ((0, 5), (5, 60))


def test_only_the_stage_that_holds_more_microbatches_recomputes() -> None:
    light = _point(forward=1.1, static=0, activation=1)
    items = [_block(_point(static=0), light)] * 8
    # Four blocks of 10 bytes for one microbatch and the boundaries of two.
    cut = cut_stages(items, stages=2, microbatches=2, in_flight=[2, 1], memory_limit=40 + 5 + 4)
    assert cut.ranges == ((0, 4), (4, 8))
    assert sorted(cut.choices[:4]) == [0, 1, 1, 1]
    assert cut.choices[4:] == (0, 0, 0, 0)


def test_tied_parameter_counts_once_in_one_stage_and_in_each_of_two() -> None:
    free = _point(static=0, activation=0, transient=0)
    tied = ChainItem(points=(free,), boundary=0, send=0.0, tied=(("weight", 70),))
    one = cut_stages([tied, tied], stages=1, microbatches=1, in_flight=[1], memory_limit=100)
    assert one.peak_memory == 70
    two = cut_stages([tied, tied], stages=2, microbatches=1, in_flight=[1, 1], memory_limit=100)
    assert two.peak_memory == 70
    assert two.shortfall == 0


def test_more_stages_than_blocks_is_a_usage_error() -> None:
    items = [_block(_point())] * 2
    with pytest.raises(UsageError, match="3 stages"):
        cut_stages(items, stages=3, microbatches=1, in_flight=[1] * 3, memory_limit=1)
