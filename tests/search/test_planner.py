"""Searches that share answers find what searches of their own do, to the last byte."""

from __future__ import annotations

import random

import pytest

from autoplan.capture import Captured
from autoplan.errors import InfeasibleError
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.solver.search import Planner, solve


def workload(batch: int = 8) -> WorkloadRecord:
    return WorkloadRecord(global_batch=batch, seq_len=32, dtype="bfloat16", optimizer="adamw")


def alone(model: Captured, cluster: Cluster, batch: int, limit: int | None) -> str:
    return shared(Planner(model), cluster, batch, limit)


def shared(planner: Planner, cluster: Cluster, batch: int, limit: int | None) -> str:
    try:
        plan = planner.plan(workload(batch), cluster, pins={}, memory_limit=limit, suggest=False)
    except InfeasibleError as error:
        return f"{error.details['needed']} {error.details['configuration']}"
    return plan.model_dump_json()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["4xh100", "2x2xv100"])
def test_a_memory_sweep_equals_solves_of_their_own(small_model: Captured, spec: str) -> None:
    cluster = load_cluster(spec)
    free = solve(small_model, workload(), cluster, pins={})
    peak = free.prediction.peak_memory
    limits = [round(peak * share) for share in (0.7, 0.9, 0.2)]
    random.Random(1).shuffle(limits)
    planner = Planner(small_model)
    assert shared(planner, cluster, 8, None) == free.model_dump_json()
    found = {limit: shared(planner, cluster, 8, limit) for limit in limits}
    expected = {limit: alone(small_model, cluster, 8, limit) for limit in limits}
    assert found == expected
    assert len(set(expected.values())) == len(limits)


def test_batches_and_clusters_in_turn_equal_solves_of_their_own(small_model: Captured) -> None:
    planner = Planner(small_model)
    asked = [("4xh100", 8), ("4xh100", 16), ("2x2xh100", 16), ("4xh100", 8)]
    for spec, batch in asked:
        cluster = load_cluster(spec)
        assert shared(planner, cluster, batch, None) == alone(small_model, cluster, batch, None)


def test_pins_and_optimizers_are_not_shared(small_model: Captured) -> None:
    planner, cluster = Planner(small_model), load_cluster("2xh100")
    for pins, optimizer in (({}, "adamw"), ({"recompute": "full"}, "adamw"), ({}, "sgd")):
        work = workload().model_copy(update={"optimizer": optimizer})
        plan = planner.plan(work, cluster, pins=pins)
        assert plan == solve(small_model, work, cluster, pins=pins)


def test_a_limit_asked_before_asks_nothing_of_the_blocks(small_model: Captured) -> None:
    cluster = load_cluster("4xh100")
    planner = Planner(small_model)
    peak = planner.plan(workload(), cluster, pins={}).prediction.peak_memory
    assert planner._last is not None
    programs = planner._last.blocks._programs
    first = programs.asked
    planner.plan(workload(), cluster, pins={}, memory_limit=2 * peak)
    assert programs.asked == first  # what fits without a limit fits within a larger one
    planner.plan(workload(), cluster, pins={}, memory_limit=int(0.8 * peak))
    tight = programs.asked
    planner.plan(workload(), cluster, pins={}, memory_limit=int(0.8 * peak) + 1)
    assert first < tight == programs.asked
