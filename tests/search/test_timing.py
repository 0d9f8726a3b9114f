"""The step time of plans is that of their timelines, which the plan file holds."""

from __future__ import annotations

import json
import math

import pytest

from autoplan.capture import Captured
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.ir.plan import MAX_EVENTS, Plan, WorkloadRecord
from autoplan.plan_checks import check_plan
from autoplan.profiles import load_cluster
from autoplan.report.timeline import stage_waits
from autoplan.simulate import timeline_of_plan
from autoplan.solver import timing
from autoplan.solver.explore import BoundLevel, Searcher
from autoplan.solver.pricing import Priced
from autoplan.solver.search import solve
from autoplan.solver.space import Pins, configurations
from autoplan.solver.timing import Simulator
from tests.search.searchers import searcher_of

CLUSTER = load_cluster("4xh100")
ADAMW = UPDATE_RULES["adamw"]
WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")
PLANS = (
    {"tp": "4"},
    {"tp": "2", "zero": "1", "dp_shard": "2"},
    {"dp_replicate": "4", "recompute": "full"},
    {"dp_shard": "4", "zero": "2", "micro_batch_size": "1"},
    {"dp_shard": "4", "zero": "3", "micro_batch_size": "1", "recompute": "selective"},
    {"pp": "2", "tp": "2", "schedule": "1f1b"},
    {"pp": "2", "dp_shard": "2", "schedule": "gpipe", "zero": "2"},
    {"pp": "2", "dp_shard": "2", "schedule": "1f1b", "zero": "3", "recompute": "full"},
    {"pp": "4", "schedule": "1f1b", "micro_batch_size": "1"},
)


@pytest.fixture(scope="module")
def searcher(small_model: Captured) -> Searcher:
    return searcher_of(small_model, CLUSTER)


@pytest.fixture(scope="module")
def priced(searcher: Searcher) -> list[Priced]:
    """Every configuration of the space that fits."""
    everything = [
        configuration
        for pins in ({}, {"zero": "3", "pp": "2"})
        for configuration in configurations(ranks=4, global_batch=8, max_stages=5, pins=Pins(pins))
    ]
    results = [searcher.result(configuration) for configuration in everything]
    return [result for result in results if isinstance(result, Priced)]


@pytest.mark.parametrize("pins", PLANS, ids=str)
def test_timeline_of_a_plan_file_takes_its_step_time(
    small_model: Captured, pins: dict[str, str]
) -> None:
    made = solve(small_model, WORKLOAD, CLUSTER, pins=pins)
    plan = Plan.model_validate_json(made.model_dump_json())
    timeline = timeline_of_plan(plan)
    assert timeline is not None
    assert timeline.makespan == plan.prediction.step_time
    assert check_plan(plan) == []
    waits = stage_waits(plan)
    assert len(waits) == plan.mesh.pp
    for rank in waits:
        parts = rank.busy, rank.messages, rank.gathers, rank.reductions, rank.other_ranks
        assert min(parts) >= 0
        assert math.isclose(sum(parts), plan.prediction.step_time, rel_tol=1e-9)
    assert plan.prediction.lower_bound <= plan.prediction.step_time
    assert all(seconds >= 0 for seconds in plan.prediction.time.model_dump().values())
    others = [c.step_time for c in plan.considered if c.step_time is not None]
    assert plan.prediction.step_time == min(others)


def test_simulation_is_the_closed_form_where_nothing_runs_beside_kernels(
    searcher: Searcher, priced: list[Priced]
) -> None:
    simulator = Simulator(CLUSTER, ADAMW)
    alone = [p for p in priced if p.configuration.mesh.dp == 1]
    schedules = {p.configuration.schedule for p in alone}
    assert schedules == {"none", "gpipe", "1f1b", "interleaved1f1b"}
    for one in alone:
        assert simulator.timed(one).step_time == pytest.approx(one.step_time, rel=1e-12)


def test_simulation_is_above_the_bound_and_near_the_closed_form(
    searcher: Searcher, priced: list[Priced]
) -> None:
    simulator = Simulator(CLUSTER, ADAMW)
    assert {p.configuration.zero for p in priced} == {0, 1, 2, 3}
    for one in priced:
        seconds = simulator.timed(one).step_time
        bound = searcher.bound(one.configuration, BoundLevel.PROGRAM)
        assert bound <= seconds * (1 + 1e-9), one.configuration.label()
        # Equal for FSDP2; DDP's buckets end where their last gradient is made.
        within = 1e-12 if one.configuration.zero >= 2 else timing._CLOSE / 2
        assert seconds == pytest.approx(one.step_time, rel=within)


def test_no_bound_of_memory_is_above_the_fullest_rank(
    searcher: Searcher, priced: list[Priced]
) -> None:
    sharded = {
        (p.configuration.zero, p.configuration.schedule, p.configuration.pipelined) for p in priced
    }
    assert sharded >= {(zero, name, True) for zero in (2, 3) for name in ("gpipe", "1f1b")}
    for one in priced:
        assert searcher.memory_needed(one.configuration) <= one.peak_memory, one.configuration


def test_fastest_is_so_by_simulation(searcher: Searcher, priced: list[Priced]) -> None:
    simulator = Simulator(CLUSTER, ADAMW)
    best = simulator.fastest(priced)
    assert best.step_time == min(simulator.timed(p).step_time for p in priced)


def test_step_with_too_many_events_is_by_closed_forms(
    small_model: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "MAX_EVENTS", 1)
    plan = solve(small_model, WORKLOAD, CLUSTER, pins={"tp": "2", "dp_shard": "2"})
    assert plan.step is None and timeline_of_plan(plan) is None
    assert stage_waits(plan) == ()
    assert any("by closed forms" in note for note in plan.notes)
    assert check_plan(plan) == []


def test_record_stores_equal_blocks_once(small_model: Captured) -> None:
    plan = solve(small_model, WORKLOAD, CLUSTER, pins={"tp": "4"})
    assert plan.step is not None
    (stage,) = plan.step.stages
    assert [count for _, count in stage.units] == [1, 3, 1]  # embedding, layers, head
    assert len(json.dumps(plan.step.model_dump())) < 2000
    assert MAX_EVENTS >= 2**10
