"""A first plan soon, a plan in the time there is, and strategies that mind the step's end."""

from __future__ import annotations

import pytest

from autoplan.capture import Captured
from autoplan.ir.plan import WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.solver.explore import BoundLevel, Searcher
from autoplan.solver.pricing import Priced
from autoplan.solver.search import solve
from autoplan.solver.space import Configuration, Pins, configurations
from tests.search.searchers import searcher_of

WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")


def searcher_for(model: Captured, limit: int | None = None) -> Searcher:
    return searcher_of(model, load_cluster("4xh100"), limit=limit)


def space(**pins: str) -> list[Configuration]:
    allowed = Pins({name: (value,) for name, value in pins.items()})
    return list(configurations(ranks=4, global_batch=8, max_stages=5, pins=allowed))


def test_first_plan_fits_and_needs_no_model_axis(small_model: Captured) -> None:
    searcher = searcher_for(small_model)
    found = searcher.first_plan(space())
    assert found is not None
    assert found.configuration.mesh.tp == 1
    assert searcher.result(found.configuration) is found


def test_first_plan_takes_the_axis_when_it_must(small_model: Captured) -> None:
    found = searcher_for(small_model).first_plan(space(tp="2"))
    assert found is not None
    assert found.configuration.mesh.tp == 2


def test_first_plan_is_none_when_nothing_fits(small_model: Captured) -> None:
    assert searcher_for(small_model, limit=1000).first_plan(space()) is None


def test_stopped_search_returns_the_first_plan(
    small_model: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Searcher._fill

    def late(searcher: Searcher, *args: object) -> None:
        fill(searcher, *args)  # type: ignore[arg-type]
        searcher.extend_deadline(0.0)

    monkeypatch.setattr(Searcher, "_fill", late)
    plan = solve(small_model, WORKLOAD, load_cluster("4xh100"), pins={"dp_shard": "4"})
    assert plan.prediction.termination == "time_limit"
    assert plan.prediction.lower_bound <= plan.prediction.step_time


def test_roofline_is_the_loosest_bound(small_model: Captured) -> None:
    searcher = searcher_for(small_model)
    for configuration in space():
        loose, tight = (
            searcher.bound(configuration, level)
            for level in (BoundLevel.ROOFLINE, BoundLevel.OPERATORS)
        )
        assert 0 < loose <= tight * (1 + 1e-9), configuration


def test_minding_the_end_of_the_step_is_never_slower(small_model: Captured) -> None:
    searcher = searcher_for(small_model)
    for configuration in space(tp="2"):
        fastest = searcher.mixed(configuration, [searcher.point(configuration)])
        assert isinstance(fastest, Priced)
        assert searcher.result(configuration).step_time <= fastest.step_time  # type: ignore[union-attr]
