"""The bound of a divided chain against every cut, its objective and its simulated step."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from autoplan.schedules import SPLIT, held_moments, ranks_of_stages, stages_of
from autoplan.simulate import simulate_pipeline
from autoplan.solver.chain import Point
from autoplan.solver.chain_bound import RankRoom, relaxed_bound
from autoplan.solver.inter import cut_stages
from tests.solver.chains import Case, assignments, cuts, every_outcome, outcomes, random_case


def one_stage_each(flights: Sequence[int], limits: Sequence[int]) -> list[RankRoom]:
    pairs = enumerate(zip(flights, limits, strict=True))
    return [RankRoom((stage,), (((flight,), limit),)) for stage, (flight, limit) in pairs]


def _bound(case: Case, limit: int) -> float:
    blocks = Counter(item.points for item in case.items)
    least = min(item.boundary for item in case.items)
    limits = []
    for stage, flight in enumerate(case.flights):
        room = limit - case.microbatches * least * (stage > 0)
        limits.append(room - (case.microbatches + flight) * least * (stage < case.stages - 1))
    return relaxed_bound(
        list(blocks),
        list(blocks.values()),
        ranks=one_stage_each(case.flights, limits),
        microbatches=case.microbatches,
        send=min(item.send for item in case.items),
    )


def _makespan(case: Case, ranges: Sequence[tuple[int, int]], choice: Sequence[int]) -> float:
    points = [item.points[index] for item, index in zip(case.items, choice, strict=True)]
    timeline = simulate_pipeline(
        case.schedule,
        [sum(point.forward for point in points[a:b]) for a, b in ranges],
        [sum(point.backward for point in points[a:b]) for a, b in ranges],
        [case.items[b - 1].send for _, b in ranges[:-1]],
        case.microbatches,
    )
    return timeline.makespan


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("seed", range(12))
def test_no_cut_and_no_simulated_step_is_below(schedule: str, seed: int) -> None:
    rng = random.Random(f"{schedule} {seed}")
    for _ in range(5):
        case = random_case(rng, points=3, most=6, schedule=schedule)
        seconds, peaks = every_outcome(case)
        limit = int(np.quantile(peaks, rng.choice((0.0, 0.05, 0.3, 1.0))))
        bound = _bound(case, limit)
        assert 0 < bound <= seconds[peaks <= limit].min()
        choices = assignments(case.items)
        for ranges in cuts(len(case.items), case.stages):
            _, held = outcomes(case, ranges, choices)
            fitting = choices[held <= limit]
            for choice in fitting[rng.sample(range(len(fitting)), min(4, len(fitting)))]:
                assert bound <= _makespan(case, ranges, choice.tolist())


@pytest.mark.parametrize("seed", range(12))
def test_more_memory_never_raises_it_and_too_little_makes_it_infinite(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng, points=3, most=12, schedule="1f1b")
    least = cut_stages(
        case.items, stages=case.stages, microbatches=case.microbatches,
        in_flight=case.flights, memory_limit=0,
    ).peak_memory  # fmt: skip
    assert _bound(case, 0) == math.inf
    bounds = [_bound(case, limit) for limit in range(least // 2, 3 * least, max(1, least // 10))]
    assert bounds[-1] < math.inf
    for tight, loose in itertools.pairwise(bounds):
        assert loose <= tight * (1 + 1e-5)


def _point(time: float, activation: int) -> Point:
    return Point(forward=time, backward=0.0, static=0, activation=activation, transient=0)


def test_it_is_the_step_of_gpipe_where_the_last_stage_is_the_longest() -> None:
    """Blocks that divide: ``(m - 1) t + sum t`` with equal stages, reached by the last."""
    bound = relaxed_bound(
        [[_point(1.0, 1)], [_point(9.0, 1)]], [6, 1],
        ranks=one_stage_each([8] * 3, [100] * 3), microbatches=8,
    )  # fmt: skip
    # The block of 9 s is whole; the others may all be before it.
    assert bound == pytest.approx(8 * 9.0)
    even = relaxed_bound(
        [[_point(1.0, 1)]], [6], ranks=one_stage_each([8] * 3, [100] * 3), microbatches=8
    )
    assert even == pytest.approx(8 * 2.0, rel=0.16)
    assert even >= 8 * 2.0


def test_memory_is_shared_out_among_the_points() -> None:
    """Half of the blocks must take the lighter point, by bytes of the one stage."""
    points = [_point(1.0, 10), _point(1.5, 2)]
    bound = relaxed_bound([points], [8], ranks=one_stage_each([1], [48]), microbatches=4)
    assert bound == pytest.approx(4 * (4 * 1.0 + 4 * 1.5), rel=2e-5)
    assert relaxed_bound([points], [8], ranks=one_stage_each([1], [15]), microbatches=4) == math.inf


@pytest.mark.parametrize(
    ("schedule", "each"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved1f1b", 2), ("loopedbfs", 2), ("zbvzerobubble", 2)],
)
def test_no_cut_with_work_at_the_end_is_below(schedule: str, each: int) -> None:
    """Sums of gradients after a stage's last backward, beside what the others still do."""
    rng = random.Random(schedule)
    for _ in range(12):
        microbatches = 2 * rng.randint(1, 3)
        blocks = [(rng.uniform(0.1, 2), rng.uniform(0.1, 2), rng.uniform(0, 6)) for _ in range(6)]
        held = [held_moments(schedule, rank, 2, microbatches, each) for rank in range(2)]
        bound = relaxed_bound(
            [[_point(f + b, 1)] for f, b, _ in blocks],
            [1] * 6,
            ranks=[
                RankRoom(stages_of(schedule, rank, 2, each), tuple((one, 10**6) for one in most))
                for rank, most in enumerate(held)
            ],
            microbatches=microbatches,
            once=[end for _, _, end in blocks],
            whole=schedule not in SPLIT,
        )
        places = ranks_of_stages(schedule, 2, each)
        for ranges in cuts(6, 2 * each):
            f, b, ends = ([sum(x[k] for x in blocks[i:j]) for i, j in ranges] for k in range(3))
            timeline = simulate_pipeline(schedule, f, b, [0.0] * (len(f) - 1), microbatches, 2)
            finish = [0.0, 0.0]
            for stage, rank in enumerate(places):
                finish[rank] = max(finish[rank], timeline.end_of_stage[stage])
            for stage, rank in enumerate(places):
                finish[rank] += ends[stage]
            assert bound <= max(finish)
