"""Plans whose blocks differ in recompute level or strategies: price, file, report."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.ir.identity import plan_digest
from autoplan.ir.mesh import Mesh
from autoplan.ir.plan import Plan
from autoplan.ir.recompute import Recompute
from autoplan.plan_checks import check_plan
from autoplan.profiles import load_cluster
from autoplan.report.summary import plan_summary
from autoplan.report.terminal import report_lines
from autoplan.simulate import timeline_of_plan
from autoplan.solver.blocks import Question
from autoplan.solver.explore import Searcher
from autoplan.solver.pricing import Priced
from autoplan.solver.space import Configuration
from autoplan.solver.timing import Simulator
from autoplan.solver.variants import pick_points
from tests.search.mixed import (
    ADAMW,
    LEVELS,
    configuration,
    mixed,
    plan_of,
    repriced,
    uniform,
)
from tests.search.searchers import searcher_of

N, S, F = LEVELS
MIXED = (N, F, N, F, S, N)
"""Embedding, four layers, head."""
ALONE = configuration(Mesh())
PLACES = {
    "alone": ALONE,
    "ddp": configuration(Mesh(dp_replicate=2)),
    "zero3": configuration(Mesh(dp_shard=2), zero=3),
    "tp": configuration(Mesh(tp=2)),
    "pp": configuration(Mesh(pp=2)),
}


@pytest.fixture(scope="module")
def gpt() -> Captured:
    source = load_model(
        "nanogpt",
        overrides={"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256, "block_size": 32},
    )
    return capture(source, seq_len=32, dtype="bfloat16")


@pytest.fixture(scope="module")
def one_rank(gpt: Captured) -> Searcher:
    return searcher_of(gpt, load_cluster("1xh100"))


@pytest.fixture(scope="module")
def two_ranks(gpt: Captured) -> Searcher:
    return searcher_of(gpt, load_cluster("2xh100"))


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> Configuration:
    return PLACES[request.param]


def searcher_at(place: Configuration, request: pytest.FixtureRequest) -> Searcher:
    found: Searcher = request.getfixturevalue("one_rank" if place is ALONE else "two_ranks")
    return found


def test_uniform_picks_change_nothing(place: Configuration, request: pytest.FixtureRequest) -> None:
    searcher = searcher_at(place, request)
    for level in LEVELS:
        given = uniform(searcher, place, level)
        again = mixed(searcher, place, [level] * 6)
        assert again.graph is given.graph and again.point.levels == given.point.levels
        assert again.step_time == given.step_time
        assert [s.memory for s in again.stages] == [s.memory for s in given.stages]


def test_a_variant_graph_of_equal_choices_has_the_price_of_its_origin(
    place: Configuration, request: pytest.FixtureRequest
) -> None:
    """Splitting a class is bookkeeping: two classes at one level cost what one did."""
    searcher = searcher_at(place, request)
    for level in LEVELS:
        given = uniform(searcher, place, level)
        other = mixed(searcher, place, [level if k % 2 else LEVELS[k % 3] for k in range(6)])
        assert len(other.graph.classes) > len(given.graph.classes)
        levelled = replace(
            other.point,
            levels=(level,) * len(other.graph.classes),
            costs=tuple(given.point.costs[k] for k in _origins(given, other)),
        )
        again = repriced(searcher, place, other.graph, levelled)
        assert again.step_time == pytest.approx(given.step_time, rel=1e-12)
        assert [s.memory for s in again.stages] == [s.memory for s in given.stages]
        simulator = Simulator(searcher.problem.cluster, ADAMW)
        assert simulator.timed(again).step_time == pytest.approx(
            simulator.timed(given).step_time, rel=1e-12
        )


def _origins(given: Priced, other: Priced) -> list[int]:
    pairs = zip(other.graph.instances, given.graph.instances, strict=True)
    origin = {new.block_class: old.block_class for new, old in pairs}
    return [origin[index] for index in range(len(other.graph.classes))]


def test_step_time_and_memory_lie_between_those_of_uniform_plans(
    place: Configuration, request: pytest.FixtureRequest
) -> None:
    searcher = searcher_at(place, request)
    none, full = (uniform(searcher, place, level) for level in (N, F))
    found = mixed(searcher, place, MIXED)
    assert found.levels == MIXED
    assert none.step_time < found.step_time < full.step_time
    assert _activations(full) < _activations(found) < _activations(none)
    assert full.peak_memory <= found.peak_memory <= none.peak_memory


def _activations(priced: Priced) -> int:
    return sum(stage.memory.activations for stage in priced.stages)


def test_step_time_is_the_sum_by_block(one_rank: Searcher) -> None:
    """On one rank: microbatches times what each block takes at its level, then the update."""
    by_level = {level: uniform(one_rank, ALONE, level) for level in LEVELS}
    found = mixed(one_rank, ALONE, MIXED)

    def busy(priced: Priced, position: int) -> float:
        block = priced.block_times[priced.graph.instances[position].block_class]
        return block.forward + block.backward + block.again

    def beside(priced: Priced) -> float:
        """The update, sums of gradients, shared operators."""
        return priced.step_time - 4 * sum(busy(priced, k) for k in range(6))

    rest = beside(by_level[N])
    assert beside(by_level[F]) == pytest.approx(rest, rel=1e-9)
    blocks = sum(busy(by_level[level], k) for k, level in enumerate(MIXED))
    assert found.step_time == pytest.approx(4 * blocks + rest, rel=1e-12)
    assert Simulator(one_rank.problem.cluster, ADAMW).timed(found).step_time == pytest.approx(
        found.step_time, rel=1e-12
    )


def test_activations_are_the_sum_by_block(one_rank: Searcher) -> None:
    """What each block keeps at its level.

    Layers end in a sum of residuals, which only the block that reads it keeps: none counts twice.
    """
    found = mixed(one_rank, ALONE, MIXED)
    graph = found.graph
    helds = [
        found.point.costs[i.block_class].held.at(level)
        for i, level in zip(graph.instances, MIXED, strict=True)
    ]
    assert not any(held.kept_outputs == (True,) for held in helds)
    (stage,) = found.stages
    assert stage.memory.activations == sum(held.kept for held in helds)


@pytest.fixture(scope="module")
def plan(gpt: Captured, two_ranks: Searcher) -> Plan:
    return plan_of(gpt, two_ranks, mixed(two_ranks, PLACES["tp"], MIXED))


def test_the_plan_file_holds_it(plan: Plan) -> None:
    again = Plan.model_validate_json(plan.model_dump_json())
    assert again == plan and plan_digest(again) == plan_digest(plan)
    assert check_plan(again) == []
    assert again.recompute == "mixed"
    assert again.graph.levels == tuple(level.value for level in MIXED)
    timeline = timeline_of_plan(again)
    assert timeline is not None and timeline.makespan == plan.prediction.step_time


def test_the_report_says_which_blocks_differ(plan: Plan) -> None:
    text = "\n".join(report_lines(plan, unicode=False))
    words = "full in 2, selective in 1 of 6 blocks, else none"
    assert f"recompute {words}" in text.replace("\n            ", " ")
    section = text[text.index("recompute by block") :].split("\n\n")[0].split("\n")[1:]
    assert [line.split() for line in section[:2]] == [
        ["none", plan.graph.instances[0].name],
        ["full", plan.graph.instances[1].name],
    ]
    assert len(section) == 6
    assert "(1 of 4 alike)" in text  # recompute alone makes no other sharding
    (chosen,) = (c for c in plan.considered if c.reason == "chosen")
    assert f"recompute {words}" in chosen.label
    document = plan_summary(plan)
    assert document["recompute"] == "mixed"
    runs = json.loads(json.dumps(document))["recompute_by_block"]
    assert [run["level"] for run in runs for _ in range(run["first"], run["last"])] == [*MIXED]


def test_a_check_finds_blocks_that_do_not_fit_together(plan: Plan) -> None:
    data = plan.model_dump(mode="json")
    index = data["graph"]["instances"][2]["block_class"]
    before = data["graph"]["classes"][index]["boundary_in"]
    data["graph"]["classes"][index]["boundary_in"] = ["S(1)" if p == "R" else "R" for p in before]
    assert any("hands them on as" in text for text in check_plan(Plan.model_validate(data)))


def test_copies_may_differ_in_strategies(gpt: Captured, two_ranks: Searcher) -> None:
    """Layers at two memory weights, with the tensors between them alike."""
    one = PLACES["tp"]
    graph = two_ranks.problem.graphs[one.micro_batch_size]
    deadline = time.monotonic() + 60
    points = [
        two_ranks.blocks.point(
            Question(
                size=one.micro_batch_size, tp=2, recompute=Recompute.NONE, spread=1,
                alpha=alpha, state_ratio=8.0,
            ),
            deadline,
        )
        for alpha in (0.0, 0.1)
    ]  # fmt: skip
    chosen = [point.solutions[1].strategies for point in points]
    assert chosen[0] != chosen[1] and points[0].frame == points[1].frame
    priced = [
        repriced(two_ranks, one, *pick_points(graph, points, picks))
        for picks in ([0] * 6, [0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0])
    ]
    fast, between, lean = priced
    assert between.levels == fast.levels
    assert fast.step_time < between.step_time < lean.step_time
    assert fast.peak_memory > between.peak_memory > lean.peak_memory
    plan = plan_of(gpt, two_ranks, between)
    assert plan.recompute == "none" and check_plan(plan) == []
    text = "\n".join(report_lines(plan, unicode=False))
    assert text.count("tensor parallel in ") == 2 and text.count("(1 of 2 alike)") == 2


def test_points_that_do_not_fit_together_are_refused(two_ranks: Searcher) -> None:
    one = PLACES["tp"]
    graph = two_ranks.problem.graphs[one.micro_batch_size]
    point = uniform(two_ranks, one, N).point
    for index, other in enumerate(uniform(two_ranks, one, F).point.solutions):
        assert set(other.placements) == set(point.solutions[index].placements)
    tied = replace(point, solutions=tuple(_moved(s) for s in point.solutions), levels=(F,) * 3)
    with pytest.raises(ValueError, match="is stored as"):
        pick_points(graph, [point, tied], [0, 0, 0, 0, 0, 1])


def _moved(solution):
    """The solution with its parameters stored otherwise."""
    from autoplan.ir.placement import Replicate, Shard

    other = {
        name: (Replicate() if isinstance(placement, Shard) else Shard(0), partial)
        for name, (placement, partial) in solution.placements.items()
    }
    return replace(solution, placements=other)
