"""Explanations against what a search with the alternative fixed says."""

from __future__ import annotations

import pytest

from autoplan.capture import Captured
from autoplan.errors import UsageError
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.report.explanation import (
    degree_document,
    degree_lines,
    placement_lines,
    placements_document,
)
from autoplan.solver.explain import explain_placements
from autoplan.solver.explain_degree import explain_degree
from autoplan.solver.planned import PlannedModel
from autoplan.solver.search import solve

WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")
CLUSTER = load_cluster("4xh100")
TP = {"tp": "2", "pp": "1", "zero": "0", "micro_batch_size": "4", "recompute": "none"}
UP = "h.0.mlp.c_fc.weight"


def planned(model: Captured, pins: dict[str, str], **options: object) -> Plan:
    return solve(model, WORKLOAD, CLUSTER, pins=pins, gap=0.0, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plan(small_model: Captured) -> Plan:
    return planned(small_model, TP)


@pytest.mark.parametrize(
    "pins",
    [
        TP,
        {"pp": "2", "tp": "2", "schedule": "1f1b", "micro_batch_size": "1"},
        {"pp": "2", "schedule": "interleaved1f1b", "virtual_stages": "2", "zero": "0"},
        {"zero": "3", "recompute": "full"},
        {"dp_shard": "2", "tp": "2", "zero": "2"},
    ],
    ids=str,
)
def test_a_plan_file_is_priced_as_the_search_priced_it(
    small_model: Captured, pins: dict[str, str]
) -> None:
    made = planned(small_model, pins)
    again = PlannedModel(Plan.model_validate_json(made.model_dump_json()), CLUSTER).priced()
    assert again.step_time == pytest.approx(made.prediction.step_time, rel=1e-9)
    assert again.peak_memory == made.prediction.peak_memory
    assert again.label() == made.considered[0].label


def test_alternatives_of_a_parameter_are_what_pinning_it_gives(
    small_model: Captured, plan: Plan
) -> None:
    (found,) = explain_placements(PlannedModel(plan, CLUSTER), UP)
    assert (found.kind, found.name, found.copies, found.ranks) == ("parameter", UP, 3, 2)
    assert found.shape == (256, 64)
    assert found.step_time == pytest.approx(plan.prediction.step_time, rel=1e-9)
    stored = {p.fqn: p.placement for p in plan.graph.parameters}
    assert found.chosen == stored[UP]
    assert {found.chosen, *(other.choice for other in found.alternatives)} == {"R", "S(0)", "S(1)"}
    for other in found.alternatives:
        pinned = planned(small_model, TP, placements=[f"*.mlp.c_fc.weight={other.choice}"])
        # The search may also change what is between blocks; the explanation keeps that.
        assert other.step_time >= pinned.prediction.step_time * (1 - 1e-9)
        assert other.step_time == pytest.approx(pinned.prediction.step_time, rel=0.05)
        assert other.step_time > found.step_time and other.fits
    assert [o.step_time for o in found.alternatives] == sorted(
        o.step_time for o in found.alternatives
    )


def test_terms_are_those_of_the_parameter(plan: Plan) -> None:
    (found,) = explain_placements(PlannedModel(plan, CLUSTER), UP)
    (reader,) = found.operators
    assert reader.target == "aten.linear.default"
    assert f"{found.chosen}" in reader.strategy.split(" -> ")[0]
    assert reader.forward > 0 and reader.backward > reader.forward
    whole = 256 * 64
    local = whole // (1 if found.chosen == "R" else 2)
    # AdamW of a bf16 model at ZeRO 0: weight and gradient, two moments and a master copy.
    assert dict(found.state) == {
        "parameters": 2 * local,
        "gradients": 2 * local,
        "optimizer": 12 * local,
        "gathered": 0,
    }
    activation = 4 * 32 * 64 * 2  # of a microbatch, bf16
    for term in found.collectives:
        assert term.payload in (activation, 4 * activation, 2 * local)
        assert term.seconds > 0


def test_a_pattern_explains_each_kind_once(plan: Plan) -> None:
    found = explain_placements(PlannedModel(plan, CLUSTER), "h.*.weight")
    names = [one.name for one in found]
    assert sorted(names) == sorted(dict.fromkeys(names))
    assert {name.split(".", 2)[2] for name in names} == {
        "ln_1.weight",
        "attn.c_attn.weight",
        "attn.c_proj.weight",
        "ln_2.weight",
        "mlp.c_fc.weight",
        "mlp.c_proj.weight",
    }
    assert all(one.copies == 3 for one in found)


def test_a_tied_parameter_changes_in_all_its_blocks(plan: Plan) -> None:
    (found,) = explain_placements(PlannedModel(plan, CLUSTER), "lm_head.weight")
    assert found.name in ("wte.weight", "lm_head.weight")
    assert found.alternatives
    assert all(other.step_time > 0 for other in found.alternatives)


def test_the_runner_up_of_an_operator_costs_time(plan: Plan) -> None:
    model = PlannedModel(plan, CLUSTER)
    block = model.graph.classes[model.graph.instances[1].block_class]
    linear = next(op for op in block.ops if op.target == "aten.linear.default")
    found = explain_placements(model, linear.name)
    mine = next(one for one in found if one.block == model.graph.instances[1].name)
    (runner_up,) = mine.alternatives
    assert runner_up.choice != mine.chosen
    assert runner_up.step_time >= mine.step_time * (1 - 1e-9)
    document = placements_document(found)
    (first, *_) = document["explanations"]  # type: ignore[misc]
    assert first["runner_up"]["step_time_difference"] == pytest.approx(
        found[0].alternatives[0].step_time - found[0].step_time
    )
    text = "\n".join(placement_lines(mine))
    for word in (linear.name, mine.chosen, runner_up.choice, "microbatch"):
        assert word in text


def test_without_a_model_axis_there_is_nothing_to_choose(small_model: Captured) -> None:
    (found,) = explain_placements(PlannedModel(planned(small_model, {"tp": "1"}), CLUSTER), UP)
    assert found.alternatives == () and found.collectives == ()
    assert "one rank has all of it" in "\n".join(placement_lines(found))


def test_what_the_plan_has_not_got_is_told_with_what_it_has(plan: Plan) -> None:
    with pytest.raises(UsageError, match="no parameter and no operator") as raised:
        explain_placements(PlannedModel(plan, CLUSTER), "h.0.mlp.c_fk.weight")
    assert "h.*.mlp.c_fc.weight" in raised.value.hint


def test_a_rejected_degree_is_the_best_plan_with_it(small_model: Captured) -> None:
    plan = planned(small_model, {})
    asked = "4" if plan.mesh.tp != 4 else "2"
    found = explain_degree(small_model, plan, CLUSTER, "tp", asked, time_limit=60.0)
    best = planned(small_model, {"tp": asked})
    assert not found.chosen and found.proved and found.other is not None
    assert found.other.step_time == pytest.approx(best.prediction.step_time, rel=1e-9)
    assert sum(seconds for _, seconds in found.other.time) == pytest.approx(found.other.step_time)
    assert sum(size for _, size in found.other.memory) == found.other.peak_memory
    change = best.prediction.step_time / plan.prediction.step_time - 1
    text = "\n".join(degree_lines(found))
    assert f"({change:+.1%})" in text and "rejected" in text
    assert degree_document(found)["shortfall"] == 0


def test_a_chosen_degree_is_compared_with_the_best_without(small_model: Captured) -> None:
    plan = planned(small_model, {})
    found = explain_degree(small_model, plan, CLUSTER, "tp", str(plan.mesh.tp), time_limit=60.0)
    others = [tp for tp in ("1", "2", "4") if int(tp) != plan.mesh.tp]
    best = min(planned(small_model, {"tp": tp}).prediction.step_time for tp in others)
    assert found.chosen and found.other is not None
    assert found.other.step_time == pytest.approx(best, rel=1e-9)
    assert "chosen" in degree_lines(found)[0]


def test_a_degree_that_does_not_fit_lacks_so_many_bytes(small_model: Captured) -> None:
    lean = planned(small_model, {"zero": "3", "tp": "1", "recompute": "full"})
    fat = planned(small_model, {"zero": "0", "tp": "1", "pp": "1", "recompute": "full"})
    limit = (lean.prediction.peak_memory + fat.prediction.peak_memory) // 2
    plan = planned(small_model, {"tp": "1", "pp": "1"}, memory_limit=limit)
    found = explain_degree(small_model, plan, CLUSTER, "zero", "0", time_limit=60.0)
    assert not found.chosen and found.needed > limit and found.other is not None
    assert found.other.step_time == 0.0
    assert sum(size for _, size in found.other.memory) == found.needed
    assert degree_document(found)["shortfall"] == found.needed - limit
    assert "rejected: does not fit" in degree_lines(found)[0]


@pytest.mark.parametrize(("name", "value"), [("tp", "3"), ("zero", "7"), ("pp", "x")])
def test_a_degree_that_cant_be_is_an_error(
    small_model: Captured, plan: Plan, name: str, value: str
) -> None:
    with pytest.raises(UsageError):
        explain_degree(small_model, plan, CLUSTER, name, value, time_limit=60.0)
