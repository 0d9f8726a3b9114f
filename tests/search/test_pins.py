"""Pins of placements and stages: against the free choice, and against every alternative."""

from __future__ import annotations

import pytest

from autoplan.capture import Captured
from autoplan.errors import InfeasibleError, UsageError
from autoplan.ir.placement import Replicate, Shard
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.plan_checks import check_plan
from autoplan.profiles import load_cluster
from autoplan.report.summary import pin_cost_message
from autoplan.report.terminal import report_lines
from autoplan.solver.blocks import BlockPricer, Question
from autoplan.solver.candidates import GraphFamily
from autoplan.solver.frames import storage_options
from autoplan.solver.placement_pins import parse_placement_pin, pinned_graph, pinned_storage
from autoplan.solver.search import solve
from autoplan.solver.stage_pins import parse_stages

WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")
CLUSTER = load_cluster("4xh100")
UP = "*.mlp.c_fc.weight"
TP = {"tp": "2", "pp": "1", "zero": "0", "micro_batch_size": "4", "recompute": "none"}


def planned(model: Captured, *, pins: dict[str, str] | None = None, **options: object) -> Plan:
    return solve(model, WORKLOAD, CLUSTER, pins=pins or {}, gap=0.0, **options)  # type: ignore[arg-type]


def stored(plan: Plan) -> dict[str, str]:
    return {p.fqn: p.placement for p in plan.graph.parameters}


@pytest.mark.parametrize(
    ("text", "pattern", "placement"),
    [
        ("a.*.w=Shard(0)", "a.*.w", Shard(0)),
        ("a=Shard(dim=1)", "a", Shard(1)),
        (" a = Shard(0, blocks=3) ", "a", Shard(0, 3)),
        ("a=S(0,3)", "a", Shard(0, 3)),
        ("a=Shard(1,pad)", "a", Shard(1, pad=True)),
        ("a=Replicate()", "a", Replicate()),
        ("a=R", "a", Replicate()),
    ],
)
def test_placements_are_read_as_plans_and_torch_write_them(
    text: str, pattern: str, placement: object
) -> None:
    pin = parse_placement_pin(text)
    assert (pin.pattern, pin.placement) == (pattern, placement)
    assert parse_placement_pin(str(pin)) == pin


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("up_proj", "is not PATTERN=PLACEMENT"),
        ("=Shard(0)", "is not PATTERN=PLACEMENT"),
        ("a=Partial()", "no placement of a parameter"),
        ("a=P", "no placement of a parameter"),
        ("a=R*", "no placement of a parameter"),
        ("a=colwise", "no placement of a parameter"),
        ("a=__import__('os')", "no placement of a parameter"),
    ],
)
def test_what_is_no_pin_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse_placement_pin(text)
    assert raised.value.hint


def test_the_best_of_all_pins_of_a_parameter_is_the_free_choice(small_model: Captured) -> None:
    graph = small_model.at(4)
    question = Question(size=4, tp=2, recompute="none", spread=1, alpha=0.0, state_ratio=1.0)  # type: ignore[arg-type]
    free = BlockPricer({4: graph}, CLUSTER).point(question, 1e12)
    for pattern in (UP, "*.attn.c_attn.weight", "wte.weight", "ln_f.weight"):
        fqn = next(iter(pinned_storage(graph, [parse_placement_pin(f"{pattern}=R")])))
        block, local = next(
            (graph.block_class(i), graph.block_class(i).parameters[i.parameters.index(fqn)])
            for i in graph.instances
            if fqn in i.parameters
        )
        bounds = {}
        for option in storage_options(block, local, 2, CLUSTER):
            pins = [parse_placement_pin(f"{pattern}={option}")]
            one = GraphFamily(lambda size, pins=pins: pinned_graph(small_model.at(size), pins))
            pricer = BlockPricer(one, CLUSTER).storing(pinned_storage(graph, pins))
            point = pricer.point(question, 1e12)
            index = next(i.block_class for i in one[4].instances if fqn in i.parameters)
            assert point.solutions[index].placements[local][0] == option
            bounds[option] = point.microbatch_bound
        assert len(bounds) > 1 or pattern == "ln_f.weight"
        assert min(bounds.values()) == pytest.approx(free.microbatch_bound, rel=1e-9)


def test_a_pinned_placement_is_kept_and_priced(small_model: Captured) -> None:
    free = planned(small_model, pins=TP)
    chosen = stored(free)["h.0.mlp.c_fc.weight"]
    other = "S(1)" if chosen != "S(1)" else "S(0)"
    pinned = planned(small_model, pins=TP, placements=[f"{UP}={other}"])
    assert not check_plan(pinned)
    assert {stored(pinned)[f"h.{k}.mlp.c_fc.weight"] for k in range(3)} == {other}
    record = pinned.pins[-1]
    assert (record.name, record.value, record.proved) == (UP, other, True)
    assert record.free_step_time == pytest.approx(free.prediction.step_time, rel=1e-9)
    assert pinned.prediction.step_time > free.prediction.step_time
    cost = pinned.prediction.step_time / free.prediction.step_time - 1
    assert f"costs {cost:+.1%}" in pin_cost_message(pinned, record)
    assert any("(by the user) costs" in line for line in report_lines(pinned))
    assert pinned.baselines == free.baselines

    same = planned(small_model, pins=TP, placements=[f"{UP}={chosen}"])
    assert same.prediction.step_time == free.prediction.step_time
    assert pin_cost_message(same, same.pins[-1]) == "costs nothing"


def test_a_pin_of_one_copy_leaves_the_others_free(small_model: Captured) -> None:
    free = planned(small_model, pins=TP)
    chosen = stored(free)["h.1.mlp.c_fc.weight"]
    other = "S(1)" if chosen != "S(1)" else "S(0)"
    some = planned(small_model, pins=TP, placements=[f"h.1.mlp.c_fc.weight={other}"])
    every = planned(small_model, pins=TP, placements=[f"{UP}={other}"])
    assert not check_plan(some)
    assert [stored(some)[f"h.{k}.mlp.c_fc.weight"] for k in range(3)] == [chosen, other, chosen]
    times = [plan.prediction.step_time for plan in (free, some, every)]
    assert times == sorted(times) and times[0] < times[1] < times[2]


def test_a_sharded_parameter_needs_a_model_axis(small_model: Captured) -> None:
    rest = {"pp": "1", "recompute": "none", "zero": "0"}
    plan = planned(small_model, placements=["*.c_attn.weight=Shard(1)"], pins=rest)
    assert plan.mesh.tp > 1
    whole = planned(small_model, placements=["*=Replicate"], pins={**rest, "tp": "1"})
    assert pin_cost_message(whole, whole.pins[-1]) == "costs nothing"
    with pytest.raises(
        UsageError, match=r"no operator takes h\.0\.attn\.c_attn\.weight so at tp 1"
    ):
        planned(small_model, placements=["*.c_attn.weight=Shard(1)"], pins={"tp": "1"})


@pytest.mark.parametrize(
    ("placements", "message", "hint"),
    [
        (["h.*.mlp.c_fk.weight=Shard(0)"], "no parameter", "h.*.mlp.c_fc.weight"),
        ([f"{UP}=Shard(5)"], "no operator takes", "at tp 2 it may be R, S(0), S(1)"),
        ([f"{UP}=Shard(0)", "h.0.mlp.*=Replicate"], "both match h.0.mlp.c_fc.weight", "narrower"),
    ],
)
def test_placements_that_cant_hold(
    small_model: Captured, placements: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        planned(small_model, placements=placements)
    assert hint in raised.value.hint


PIPELINE = {"tp": "1", "zero": "0", "micro_batch_size": "1", "schedule": "1f1b"}


def test_the_best_of_all_given_stages_is_the_free_cut(small_model: Captured) -> None:
    pins = {**PIPELINE, "pp": "2", "dp_replicate": "2", "recompute": "none"}
    free = planned(small_model, pins=pins)
    times = {}
    for first in range(1, 5):
        cut = f"0-{first - 1},{first}-4"
        plan = planned(small_model, pins=pins, stages=cut)
        assert not check_plan(plan)
        assert [(s.first, s.last) for s in plan.pipeline.stages] == [(0, first), (first, 5)]
        times[cut] = plan.prediction.step_time
        (record,) = (pin for pin in plan.pins if pin.name == "stages")
        assert parse_stages(record.value, small_model.at(1)) == ((0, first), (first, 5))
        assert record.free_step_time == pytest.approx(free.prediction.step_time, rel=1e-9)
    assert min(times.values()) == pytest.approx(free.prediction.step_time, rel=1e-9)
    assert len({round(seconds, 12) for seconds in times.values()}) > 1


def test_given_stages_take_the_recompute_that_memory_forces(small_model: Captured) -> None:
    pins = {**PIPELINE, "dp_replicate": "2"}
    loose, lean = (
        planned(small_model, pins={**pins, "recompute": level}, stages="0-1,2-4")
        for level in ("none", "full")
    )
    peaks = [plan.prediction.peak_memory for plan in (lean, loose)]
    assert peaks[0] < peaks[1]
    tight = planned(small_model, pins=pins, stages="0-1,2-4", memory_limit=sum(peaks) // 2)
    assert tight.mesh.pp == 2 and tight.recompute != "none"
    assert tight.prediction.step_time > loose.prediction.step_time


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("0-1,2-4", ((0, 2), (2, 5))),
        ("0,1-3,4", ((0, 1), (1, 4), (4, 5))),
        ("0-4", ((0, 5),)),
        ("h.1", ((0, 2), (2, 5))),
        ("h.0,h.2", ((0, 1), (1, 3), (3, 5))),
    ],
)
def test_stages_by_number_and_by_name(
    small_model: Captured, text: str, stages: tuple[tuple[int, int], ...]
) -> None:
    assert parse_stages(text, small_model.at(1)) == stages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-1,3-4", "block 2 is in no stage"),
        ("0-2,2-4", "block 2 is in two stages"),
        ("1-4", "block 0 is in no stage"),
        ("0-3", "block 4 is in no stage"),
        ("0-1,2-5", "the model has 5 blocks, the last is 4"),
        ("0-1,h.2", "by number and by name at once"),
        ("h.2,h.1", "h.1 does not come after h.2"),
        ("h.3", "no block 'h.3'"),
        ("", "no block ''"),
        ("2-0", "ends before it starts"),
    ],
)
def test_stages_that_are_none(small_model: Captured, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        planned(small_model, stages=text)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("pins", "stages", "message"),
    [
        ({"pp": "4"}, "0-1,2-4", "are 2, --pp 4 are others"),
        ({}, "0,1,2-4", "no legal configuration of 4 ranks"),
    ],
)
def test_stages_must_agree_with_the_ranks(
    small_model: Captured, pins: dict[str, str], stages: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        planned(small_model, pins=pins, stages=stages)


def test_degrees_are_priced_against_the_free_choice(small_model: Captured) -> None:
    others = {"pp": "1", "recompute": "none", "zero": "0", "micro_batch_size": "2,4"}
    free = planned(small_model, pins=others)
    several = planned(small_model, pins={**others, "tp": "2,4"})
    best = min(
        planned(small_model, pins={**others, "tp": tp}).prediction.step_time for tp in ("2", "4")
    )
    assert several.prediction.step_time == pytest.approx(best, rel=1e-9)
    record = several.pins[-1]
    assert (record.name, record.value) == ("tp", "2,4")
    assert record.free_step_time == pytest.approx(free.prediction.step_time, rel=1e-6)


def test_a_pin_in_the_way_is_named(small_model: Captured) -> None:
    pins = {"zero": "0", "micro_batch_size": "1", "pp": "1", "tp": "2", "recompute": "none"}
    fat = planned(small_model, pins=pins, placements=["*=Replicate"])
    limit = fat.prediction.peak_memory - 1
    with pytest.raises(InfeasibleError) as raised:
        planned(small_model, pins=pins, placements=["*=Replicate"], memory_limit=limit)
    changes = raised.value.details["changes"]
    assert isinstance(changes, list)
    assert "without --pin *=R" in [change["change"] for change in changes]  # type: ignore[index, call-overload]
