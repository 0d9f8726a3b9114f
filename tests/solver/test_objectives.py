"""Pareto front, knee and objectives of a sweep, against definitions and numbers by hand."""

from __future__ import annotations

import random

import pytest

from autoplan.ir.plan import Plan
from autoplan.ir.sweep import Objective, PointRecord
from autoplan.solver.objectives import judged, knee, pareto_front, with_plan


def point(
    *, nodes: int = 1, batch: int = 8, limit: int = 100, step_time: float | None = 1.0
) -> PointRecord:
    return PointRecord(
        cluster=f"{nodes}x4xh100",
        nodes=nodes,
        ranks_per_node=4,
        global_batch=batch,
        memory_limit=limit,
        status="infeasible" if step_time is None else "solved",
        step_time=step_time,
    )


def amdahl(serial: float, parallel: float, nodes: list[int]) -> list[PointRecord]:
    return [point(nodes=n, step_time=serial + parallel / n) for n in nodes]


def test_knee_of_amdahls_law() -> None:
    """n (s + p / n)^2 is least where s = p / n."""
    nodes = [1, 2, 4, 8, 16, 32, 64]
    assert knee(amdahl(1.0, 16.0, nodes)) == nodes.index(16)
    assert knee(amdahl(4.0, 16.0, nodes)) == nodes.index(4)
    assert knee(amdahl(0.0, 16.0, nodes)) == nodes.index(64)  # no end to the gain
    assert knee(amdahl(1.0, 0.0, nodes)) == nodes.index(1)  # no gain at all


def test_knee_leaves_out_what_has_no_plan() -> None:
    points = amdahl(1.0, 16.0, [8, 16, 32, 64])
    points[1] = point(nodes=16, step_time=None)
    assert knee(points) == 0  # 8 and 32 nodes: 8 * 9 and 32 * 2.25 are both 72; the fewer count


def test_knee_of_memory_is_furthest_below_the_chord() -> None:
    limits = {10: 1.0, 20: 0.4, 30: 0.3, 40: 0.2}
    points = [point(limit=limit, step_time=seconds) for limit, seconds in limits.items()]
    # 1 - 1/3 - 1/4 = 0.42 at 20, 1 - 2/3 - 1/8 = 0.21 at 30, 0 at the ends.
    assert knee(points) == 1
    straight = [point(limit=limit, step_time=1.0 - limit / 100) for limit in (10, 20, 30)]
    assert knee(straight) is None
    flat = [point(limit=limit, step_time=1.0) for limit in (10, 20, 30)]
    assert knee(flat) == 0  # more memory gains nothing


@pytest.mark.parametrize("seed", range(20))
def test_front_has_exactly_what_nothing_beats(seed: int) -> None:
    draw = random.Random(seed)
    points = [
        point(
            nodes=draw.choice([1, 2, 4]),
            batch=draw.choice([8, 16]),
            limit=draw.choice([10, 20, 30]),
            step_time=draw.choice([None, 1.0, 2.0, 3.0, 4.0]),
        )
        for _ in range(30)
    ]
    front = pareto_front(points)

    def key_of(p: PointRecord) -> tuple[float, ...] | None:
        if p.step_time is None:
            return None
        return p.nodes, p.global_batch, p.memory_limit, p.step_time / p.global_batch

    keys = [key_of(p) for p in points]
    for index, key in enumerate(keys):
        if key is None:
            assert index not in front
            continue
        as_good = [
            other for other in keys
            if other is not None and all(a <= b for a, b in zip(other, key, strict=True))
        ]  # fmt: skip
        beaten = any(other != key for other in as_good) or keys.index(key) < index
        assert (index in front) is not beaten


@pytest.mark.parametrize(
    ("objective", "best"),
    [("step-time", 2), ("device-hours", 0), ("cost", 0), ("knee", 1)],
)
def test_objectives_choose(objective: Objective, best: int) -> None:
    # Device-seconds 4, 4.8 and 8; ranks times squared time 4, 2.88 and 4.
    points = [point(nodes=n, step_time=t) for n, t in ((1, 1.0), (2, 0.6), (4, 0.5))]
    chosen = [p.chosen for p in judged(points, objective)]
    assert chosen == [index == best for index in range(3)]
    assert [p.pareto for p in judged(points, objective)] == [True] * 3


def test_batches_are_compared_by_sample_and_ties_go_to_what_takes_less() -> None:
    points = [point(batch=16, step_time=2.0), point(batch=8, step_time=1.0), point(batch=4)]
    assert [p.chosen for p in judged(points, "step-time")] == [False, True, False]


def test_nothing_is_chosen_of_nothing() -> None:
    for objective in ("step-time", "knee"):
        marked = judged([point(step_time=None)], objective)
        assert not (marked[0].chosen or marked[0].pareto or marked[0].knee)


def test_numbers_of_a_plan_by_hand(plan: Plan) -> None:
    """16 sequences of 128 tokens in 3.5 s on 4 ranks, at 2 a device-hour."""
    found = with_plan(point(batch=16, step_time=None), plan, 2.0)
    assert found.device_seconds_per_sample == pytest.approx(4 * 3.5 / 16)
    assert found.device_seconds_per_token == pytest.approx(4 * 3.5 / 16 / 128)
    assert found.cost_per_token == pytest.approx(2 * 4 * 3.5 / 3600 / 16 / 128)
    assert found.tokens_per_second == pytest.approx(16 * 128 / 3.5)
    assert found.label == "pp 2 x tp 2, mbs 4" and found.peak_memory == 56 * 2**30
    assert with_plan(point(batch=16), plan, None).cost_per_token is None
