"""Schedules of several stages a rank: the space, prices, memory, bounds and plans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autoplan.capture import Captured
from autoplan.costs.memory import MemorySettings, StagePass
from autoplan.errors import UsageError
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.ir.recompute import Recompute
from autoplan.plan_checks import check_plan
from autoplan.profiles import load_cluster
from autoplan.report.terminal import report_lines
from autoplan.schedules import ONE_STAGE, SCHEDULES, SPLIT, most_held, order, stages_of
from autoplan.simulate import simulate_pipeline, timeline_of_plan
from autoplan.solver.bounds import pipeline_bound
from autoplan.solver.explore import BoundLevel
from autoplan.solver.loop_bound import loop_factor
from autoplan.solver.pricing import Overflow, Priced
from autoplan.solver.rank_memory import rank_memory
from autoplan.solver.search import solve
from autoplan.solver.space import Configuration, Pins, configurations, parse_pins
from autoplan.solver.timing import Simulator
from tests.search.searchers import searcher_of

ADAMW = UPDATE_RULES["adamw"]
WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")
LOOPED = [name for name in SCHEDULES if name not in ONE_STAGE]
SETTINGS = MemorySettings(
    zero=0,
    dp_shard=1,
    itemsize=4,
    update=ADAMW,
    pipelined=True,
    microbatches=8,
    replicated=False,
)


def space_of(*, blocks: int = 5, ranks: int = 4, **pins: str) -> list[Configuration]:
    return list(
        configurations(
            ranks=ranks, global_batch=8, max_stages=blocks, pins=parse_pins(pins, ranks, 8)
        )
    )


def test_interleaving_is_searched_where_it_can_run() -> None:
    free = space_of(blocks=8)
    looped = [c for c in free if c.virtual_stages > 1]
    assert {(c.mesh.pp, c.virtual_stages) for c in looped} == {(2, 2), (4, 2)}
    assert {c.schedule for c in looped} == {"interleaved1f1b"}
    assert all(c.zero <= 1 for c in looped)
    assert not [c for c in space_of(blocks=3) if c.virtual_stages > 1]
    pinned = space_of(blocks=8, virtual_stages="4")
    assert {(c.mesh.pp, c.virtual_stages) for c in pinned} == {(2, 4)}


@pytest.mark.parametrize("schedule", LOOPED)
def test_a_pinned_schedule_is_what_there_is(schedule: str) -> None:
    found = space_of(schedule=schedule, blocks=8)
    assert found and {c.schedule for c in found} == {schedule}
    folded = schedule in ("zbvzerobubble", "dualpipev")
    assert {c.virtual_stages for c in found} <= ({2} if folded else {1, 2})


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"virtual_stages": "2", "schedule": "1f1b"}, "1f1b runs 1 stage on a rank, not 2"),
        ({"virtual_stages": "3", "schedule": "dualpipev"}, "dualpipev runs 2 stages on a rank"),
        ({"virtual_stages": "2", "zero": "3"}, "--zero 3 shards parameters"),
        ({"schedule": "loopedbfs", "zero": "2,3"}, "--zero 2,3 shards parameters"),
        ({"virtual_stages": "4", "pp": "2"}, "8 stages, but the model has 5 blocks"),
        ({"virtual_stages": "none"}, "--virtual-stages takes a positive whole number"),
        ({"schedule": "zbvzerobubble", "recompute": "full"}, "splits backwards"),
    ],
)
def test_what_cannot_run_is_refused(
    small_model: Captured, pins: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        solve(small_model, WORKLOAD, load_cluster("4xh100"), pins=pins)


def test_split_backwards_are_not_compiled(small_model: Captured) -> None:
    compiled = WORKLOAD.model_copy(update={"compile": True})
    with pytest.raises(UsageError, match="which --compile rules out"):
        solve(small_model, compiled, load_cluster("4xh100"), pins={"schedule": "dualpipev"})


@pytest.mark.parametrize("schedule", LOOPED)
def test_bounds_are_below_prices_which_are_simulations(
    small_model: Captured, schedule: str
) -> None:
    cluster = load_cluster("2x2xa100-80")
    searcher, simulator = searcher_of(small_model, cluster), Simulator(cluster, ADAMW)
    space = space_of(schedule=schedule)
    assert space
    for one in space:
        found = searcher.result(one)
        assert isinstance(found, Priced)
        assert searcher.memory_needed(one) <= found.peak_memory
        for level in BoundLevel:
            assert searcher.bound(one, level) <= found.step_time * (1 + 1e-9), one.label()
        within = 1e-12 if one.mesh.dp == 1 else 0.05
        assert simulator.timed(found).step_time == pytest.approx(found.step_time, rel=within)


@pytest.mark.parametrize("share", [0.45, 0.55])
def test_bounds_hold_where_memory_binds(small_model: Captured, share: float) -> None:
    cluster = load_cluster("4xh100")
    space = space_of(virtual_stages="2", pp="2")
    free = searcher_of(small_model, cluster)
    peaks = [free.result(one) for one in space]
    limit = int(share * max(p.peak_memory for p in peaks if isinstance(p, Priced)))
    tight = searcher_of(small_model, cluster, limit=limit)
    recomputed = 0
    for one in space:
        found = tight.result(one)
        if isinstance(found, Overflow):
            continue
        assert isinstance(found, Priced) and found.peak_memory <= limit
        recomputed += any(level is not Recompute.NONE for level in found.levels)
        for level in BoundLevel:
            assert tight.bound(one, level) <= found.step_time * (1 + 1e-9), one.label()
    assert recomputed


@pytest.mark.parametrize("schedule", LOOPED)
def test_a_plan_says_what_its_file_and_report_say(small_model: Captured, schedule: str) -> None:
    pins = {"schedule": schedule, "pp": "2", "virtual_stages": "2", "micro_batch_size": "1"}
    made = solve(small_model, WORKLOAD, load_cluster("4xh100"), pins=pins)
    plan = Plan.model_validate_json(made.model_dump_json())
    assert check_plan(plan) == []
    assert len(plan.pipeline.stages) == 4 and plan.virtual_stages == 2
    assert len(plan.prediction.stages) == 2
    timeline = timeline_of_plan(plan)
    assert timeline is not None and timeline.makespan == plan.prediction.step_time
    assert sum(plan.prediction.time.model_dump().values()) == pytest.approx(timeline.makespan)
    assert (plan.recompute == "none") or schedule not in SPLIT
    text = "\n".join(report_lines(plan, width=200))
    assert f"schedule {schedule}, 2 stages a rank" in text
    assert any("in two is priced as half" in note for note in plan.notes) == (schedule in SPLIT)


def test_fewer_bubbles_than_one_stage_a_rank(small_model: Captured) -> None:
    """Where messages cost nothing, of the same even cut."""
    for microbatches in (4, 8):
        times = [
            simulate_pipeline(
                schedule, [1.0 / each] * 4 * each, [2.0 / each] * 4 * each,
                [0.0] * (4 * each - 1), microbatches, 4,
            ).makespan
            for schedule, each in (("1f1b", 1), ("interleaved1f1b", 2), ("interleaved1f1b", 4))
        ]  # fmt: skip
        assert times == pytest.approx([3 * (microbatches + 3 / each) for each in (1, 2, 4)])


@pytest.mark.parametrize("schedule", ["interleaved1f1b", "loopedbfs"])
def test_loop_bound_is_below_every_cut(schedule: str) -> None:
    rng = random.Random(schedule)
    for _ in range(200):
        ranks, each = rng.randint(1, 4), rng.randint(1, 3)
        microbatches, stages = ranks * rng.randint(1, 3), ranks * each
        # Mostly little in the first stages, as that makes waits short.
        small = [rng.choice((0.01, 1.0)) if s < ranks - 1 else 1.0 for s in range(stages)]
        forward = [part * rng.uniform(0.1, 1) for part in small]
        backward = [part * rng.uniform(0.1, 2) for part in small]
        links = [0.0] * (stages - 1)
        timeline = simulate_pipeline(schedule, forward, backward, links, microbatches, ranks)
        factor = loop_factor(ranks, each, microbatches)
        assert factor * (sum(forward) + sum(backward)) <= timeline.makespan
        assert microbatches / ranks * (1 - 2e-5) <= factor <= microbatches


def test_loop_bound_of_one_stage_a_rank_is_the_closed_form() -> None:
    for ranks in (1, 2, 3, 8, 16):
        for microbatches in (1, 2, 7, 64):
            closed = pipeline_bound(1.0, ranks, microbatches)
            assert loop_factor(ranks, 1, microbatches) == pytest.approx(closed, rel=1e-4)
            # More stages never wait longer, by the bound.
            assert loop_factor(ranks, 2, microbatches) <= closed * (1 + 1e-4)


def passes(rng: random.Random, stages: tuple[int, ...]) -> dict[int, StagePass]:
    """Stages that need nothing but what they keep."""
    return {
        stage: StagePass(
            numel=0,
            trainable=0,
            kept=kept,
            unkept=0,
            forward=kept,
            backward=kept,
            first=kept,
            received=0,
            sent=0,
        )
        for stage, kept in ((stage, rng.randint(1, 50)) for stage in stages)
    }


@pytest.mark.parametrize("schedule", LOOPED)
def test_activations_of_a_rank_are_those_of_its_order(schedule: str) -> None:
    rng = random.Random(schedule)
    for rank in range(3):
        steps = order(schedule, rank, 3, 9, 2)
        held = passes(rng, stages_of(schedule, rank, 3, 2))
        most = most_held(steps, lambda s: held[s].kept, lambda s: held[s].kept)  # noqa: B023
        memory = rank_memory(held, steps, SETTINGS, shared=0, resident=7)
        assert memory.peak == most + 7
        assert memory.activations + memory.transient == most


def test_memory_of_a_rank_by_hand() -> None:
    """Rank 0 of 2: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3."""
    small = StagePass(
        numel=10, trainable=10, kept=100, unkept=5, forward=120, backward=130, first=90,
        received=0, sent=20,
    )  # fmt: skip
    large = replace(small, kept=200, unkept=0, forward=200, backward=260, first=250, received=20)
    steps = order("interleaved1f1b", 0, 2, 4, 2)
    settings = replace(SETTINGS, microbatches=4)
    memory = rank_memory({0: small, 2: large}, steps, settings, shared=3, resident=1)
    # 2B0 finds three microbatches at stage 0, two at stage 2 and, of gradients, only its own.
    first = 3 * (100 + 5 + 3) + 2 * (200 + 3) - 200 + 250 - 10 * 4
    # 0B1 finds as many, and all gradients.
    second = 3 * (100 + 5 + 3) + 2 * (200 + 3) - 100 + 130
    assert memory.activations + memory.transient == max(first, second) == second
    assert memory.parameters == memory.gradients == 80
    assert memory.buffers == 1 + 4 * (20 + 20 + 20)
    settings = replace(settings, host=True)
    on_host = rank_memory({0: small, 2: large}, steps, settings, shared=3, resident=1)
    # Messages of 2B0, 2B1 and 0B0, and of their forwards, are there until the step ends.
    assert on_host.peak - memory.peak == 2 * (20 + 20) + 20


def test_a_searched_plan_is_no_slower_than_any_schedule_pinned(small_model: Captured) -> None:
    cluster = load_cluster("4xh100")
    free = solve(small_model, WORKLOAD, cluster, pins={"pp": "2"})
    pinned = solve(small_model, WORKLOAD, cluster, pins={"pp": "2", "virtual_stages": "2"})
    assert free.prediction.step_time <= pinned.prediction.step_time * (1 + 1e-9)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_pruned_search_equals_exhaustive_with_interleaving(
    small_model: Captured, share: float
) -> None:
    cluster = load_cluster("4xh100")
    space = list(
        configurations(ranks=4, global_batch=8, max_stages=5, pins=Pins({"pp": ("2", "4")}))
    )
    assert any(c.virtual_stages == 2 for c in space)
    free = searcher_of(small_model, cluster)
    peaks = sorted(r.peak_memory for r in map(free.result, space) if isinstance(r, Priced))
    limit = peaks[int(share * (len(peaks) - 1))]
    exhaustive = searcher_of(small_model, cluster, limit=limit)
    best = min(r.step_time for r in map(exhaustive.result, space) if isinstance(r, Priced))
    outcome = searcher_of(small_model, cluster, limit=limit).run(space)
    assert outcome.best is not None
    assert outcome.best.step_time == pytest.approx(best, rel=1e-9)
