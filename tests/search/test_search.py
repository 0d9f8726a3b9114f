"""The outer search against exhaustive pricing, and its promises to users."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoplan.capture import Captured
from autoplan.errors import InfeasibleError, SolverLimitError, UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import ModelRecord, Plan, WorkloadRecord
from autoplan.ir.recompute import Recompute, recompute_levels
from autoplan.profiles import load_cluster
from autoplan.solver.explore import BoundLevel
from autoplan.solver.pricing import Priced
from autoplan.solver.search import solve
from autoplan.solver.space import Pins, configurations
from tests.search.searchers import searcher_of

WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")


def plan_for(model: Captured, cluster: Cluster, **options: object) -> Plan:
    pins = options.pop("pins", {})
    limit = options.pop("memory_limit", None)
    assert not options
    return solve(model, WORKLOAD, cluster, pins=pins, memory_limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["4xh100", "2x2xv100"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_pruned_search_equals_exhaustive(small_model: Captured, spec: str, share: float) -> None:
    cluster = load_cluster(spec)
    space = list(configurations(ranks=cluster.ranks, global_batch=8, max_stages=5, pins=Pins({})))
    free = searcher_of(small_model, cluster)
    peaks = sorted(
        result.peak_memory for result in map(free.result, space) if isinstance(result, Priced)
    )
    limit = peaks[int(share * (len(peaks) - 1))]
    exhaustive = searcher_of(small_model, cluster, limit=limit)
    best = min(
        result.step_time for result in map(exhaustive.result, space) if isinstance(result, Priced)
    )
    outcome = searcher_of(small_model, cluster, limit=limit).run(space)
    assert outcome.best is not None
    assert outcome.best.step_time == pytest.approx(best, rel=1e-9)
    assert outcome.pruned_time + outcome.pruned_memory > 0


@pytest.mark.parametrize("spec", ["2x2xa100-80", "cpu:4"])
def test_bounds_never_exceed_prices(small_model: Captured, spec: str) -> None:
    cluster = load_cluster(spec)
    searcher = searcher_of(small_model, cluster)
    space = list(configurations(ranks=4, global_batch=8, max_stages=5, pins=Pins({})))
    for configuration in space:
        result = searcher.result(configuration)
        assert isinstance(result, Priced)
        assert searcher.memory_needed(configuration) <= result.peak_memory
        for level in BoundLevel:
            bound = searcher.bound(configuration, level)
            assert bound <= result.step_time * (1 + 1e-9), configuration
    assert len(space) > 30


def test_recurrent_layers_have_no_selective_level(small_model: Captured) -> None:
    class Recurrent:
        """The model, as if its products were recurrent layers."""

        def at(self, size: int) -> Graph:
            graph = small_model.at(size)
            classes = tuple(
                replace(
                    block,
                    ops=tuple(
                        replace(op, target="aten.gru.input") if op.flop else op for op in block.ops
                    ),
                )
                for block in graph.classes
            )
            return replace(graph, classes=classes)

        def record(self) -> ModelRecord:
            return small_model.record()

    assert recompute_levels(small_model.at(1)) == tuple(Recompute)
    assert recompute_levels(Recurrent().at(1)) == (Recompute.NONE, Recompute.FULL)
    with pytest.raises(UsageError, match="has recurrent layers"):
        solve(Recurrent(), WORKLOAD, load_cluster("4xh100"), pins={"recompute": "selective"})


def test_never_slower_than_a_baseline(small_model: Captured) -> None:
    for spec in ("8xh100", "2x4xl40s", "cpu:4"):
        plan = plan_for(small_model, load_cluster(spec))
        times = [b.step_time for b in plan.baselines if b.step_time is not None]
        assert times, spec
        assert plan.prediction.step_time <= min(times) * (1 + 1e-9)


def test_more_memory_is_never_slower(small_model: Captured) -> None:
    cluster = load_cluster("4xh100")
    free = plan_for(small_model, cluster)
    peak = free.prediction.peak_memory
    times = []
    for share in (0.55, 0.7, 0.85, 1.0):
        try:
            plan = plan_for(small_model, cluster, memory_limit=int(peak * share))
        except InfeasibleError:
            continue
        assert plan.prediction.peak_memory <= peak * share
        times.append(plan.prediction.step_time)
    assert len(times) >= 2
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(times))


def test_parts_sum_to_wholes(small_model: Captured) -> None:
    cluster = load_cluster("2x2xh100")
    for pins in ({}, {"pp": "2"}, {"tp": "2"}, {"pp": "2", "recompute": "full"}, {"zero": "3"}):
        plan = plan_for(small_model, cluster, pins=pins)
        parts = plan.prediction.time.model_dump()
        assert sum(parts.values()) == pytest.approx(plan.prediction.step_time, rel=1e-9), pins
        assert all(part >= -1e-12 for part in parts.values()), pins
        for stage in plan.prediction.stages:
            memory = stage.model_dump()
            peak = memory.pop("peak")
            assert sum(memory.values()) == peak
        assert max(s.peak for s in plan.prediction.stages) == plan.prediction.peak_memory


def test_pins_hold_and_cost(small_model: Captured) -> None:
    cluster = load_cluster("4xh100")
    free = plan_for(small_model, cluster)
    pinned = plan_for(
        small_model,
        cluster,
        pins={
            "tp": "2",
            "pp": "2",
            "micro_batch_size": "2",
            "schedule": "gpipe",
            "recompute": "full",
        },
    )
    assert (pinned.mesh.tp, pinned.mesh.pp) == (2, 2)
    assert pinned.pipeline.schedule == "gpipe"
    assert pinned.pipeline.micro_batch_size == 2
    assert pinned.recompute == "full"
    assert pinned.prediction.step_time >= free.prediction.step_time


@pytest.mark.parametrize(
    ("pins", "fragment"),
    [
        ({"tp": "3"}, "nearest legal value: --tp 2"),
        ({"tp": "0"}, ""),
        ({"tp": "two"}, ""),
        ({"micro_batch_size": "5"}, "--micro-batch-size 4"),
        ({"schedule": "zigzag"}, "gpipe, 1f1b"),
        ({"zero": "7"}, "0, 1, 2, 3"),
        ({"tp": "4", "pp": "4"}, "product must divide 4"),
        ({"dp_shard": "1", "zero": "3"}, "drop one"),
        ({"pp": "1", "schedule": "gpipe"}, "drop one"),
    ],
)
def test_impossible_pins(small_model: Captured, pins: dict[str, str], fragment: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan_for(small_model, load_cluster("4xh100"), pins=pins)
    assert fragment in raised.value.hint


def test_nothing_fits_says_by_how_much(small_model: Captured) -> None:
    limit = 100_000
    with pytest.raises(InfeasibleError) as raised:
        plan_for(small_model, load_cluster("2xh100"), memory_limit=limit)
    details = raised.value.details
    assert details["needed"] == limit + int(str(details["shortfall"]))
    assert str(details["shortfall"]) in str(raised.value)
    assert raised.value.hint


def test_a_change_named_as_fitting_fits(small_model: Captured) -> None:
    cluster = load_cluster("2xh100")
    lean = plan_for(small_model, cluster, pins={"recompute": "full", "micro_batch_size": "1"})
    wasteful = {"zero": "0", "micro_batch_size": "4", "tp": "1", "pp": "1", "recompute": "none"}
    fat = plan_for(small_model, cluster, pins=wasteful)
    limit = (lean.prediction.peak_memory + fat.prediction.peak_memory) // 2
    with pytest.raises(InfeasibleError) as raised:
        plan_for(small_model, cluster, pins=wasteful, memory_limit=limit)
    assert "without --" in raised.value.hint


def test_no_time_is_said(small_model: Captured) -> None:
    with pytest.raises(SolverLimitError):
        solve(small_model, WORKLOAD, load_cluster("4xh100"), pins={}, time_limit=0.0)


def test_same_input_same_bytes(small_model: Captured) -> None:
    cluster = load_cluster("4xh100")
    first = plan_for(small_model, cluster).model_dump_json()
    assert plan_for(small_model, cluster).model_dump_json() == first


def test_one_rank_and_odd_ranks(small_model: Captured) -> None:
    alone = plan_for(small_model, load_cluster("h100"))
    assert alone.prediction.time.exposed_dp == 0.0
    # Seven ranks divide neither the batch nor a dimension: all that is left is to repeat.
    odd = plan_for(small_model, load_cluster("7xh100"))
    assert odd.mesh.tp == 7
    assert odd.prediction.step_time >= alone.prediction.step_time * (1 - 1e-9)
