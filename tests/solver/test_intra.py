"""Placements of a block against its closed-form cost and against enumeration."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoplan.costs.block import BlockCost, block_cost, collectives
from autoplan.costs.terms import parameter_states
from autoplan.errors import InfeasibleError, InternalError, SolverLimitError
from autoplan.ir.graph import BlockClass, Op, Ref, Tensor, TensorKind
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind, Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import strategies
from autoplan.solver.intra import BlockProgram, BlockPrograms, BlockSolution, Setting
from autoplan.solver.linear import Termination
from autoplan.solver.lp import Handover
from autoplan.solver.problem import Weights

R = Replicate()
PARAMETER_COST = 1e-14
PARTIAL_COST = 1e-13


def _solve(
    block: BlockClass,
    cluster: Cluster,
    boundary: Placement,
    *,
    ranks: int = 8,
    fixed: dict[str, Placement] | None = None,
    recompute: Recompute = Recompute.NONE,
    memory_limit: int | None = None,
    memory_weight: float = 0.0,
    partial_cost: float = PARTIAL_COST,
    handover: Handover = Handover.ARRAYS,
    seconds: float = 30.0,
    barred: tuple[tuple[str, OpStrategy], ...] = (),
) -> BlockSolution:
    setting = Setting(
        boundary_in=(boundary,) * len(block.inputs),
        boundary_out=(boundary,) * len(block.outputs),
        fixed=tuple((fixed or {}).items()),
        recompute=recompute,
        keeps=memory_weight > 0 or memory_limit is not None,
        memory_limit=memory_limit,
        barred=barred,
    )
    return BlockProgram(block, Group(ranks, ranks), cluster, setting).solve(
        Weights(PARAMETER_COST, partial_cost, memory_weight),
        deadline=time.monotonic() + seconds,
        handover=handover,
    )


def _cost(
    block: BlockClass,
    chosen: dict[str, OpStrategy],
    cluster: Cluster,
    boundary: Placement,
    ranks: int = 8,
) -> BlockCost:
    ins, outs = (boundary,) * len(block.inputs), (boundary,) * len(block.outputs)
    return block_cost(block, chosen, ins, outs, Group(ranks, ranks), cluster)


def _objective(block: BlockClass, cost: BlockCost, *, recompute: Recompute, weight: float) -> float:
    forward = cost.forward + cost.tp_forward + cost.forward_again(recompute)
    parameters = sum(numel * size for _, numel, size in cost.parameters)
    partial = sum(block.tensor(name).size for name in cost.partial_grads)
    kept = 0 if recompute is Recompute.FULL else cost.kept(recompute)
    if recompute is Recompute.SELECTIVE:
        # What the block hands on is the same whatever the strategies.
        held = cost.held.at(recompute)
        handed = zip(cost.held.outputs, held.kept_outputs, strict=True)
        kept -= sum(size for size, is_kept in handed if is_kept)
    return (
        forward
        + cost.backward
        + cost.tp_backward
        + PARAMETER_COST * parameters
        + PARTIAL_COST * partial
        + weight * kept
    )


@pytest.mark.parametrize("boundary", [R, Shard(1)], ids=str)
@pytest.mark.parametrize("recompute", list(Recompute))
@pytest.mark.parametrize("weight", [0.0, 1e-12])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_objective_is_the_closed_form_of_the_chosen_strategies(
    llama: BlockClass,
    cluster: Cluster,
    boundary: Placement,
    recompute: Recompute,
    weight: float,
    ranks: int,
) -> None:
    found = _solve(llama, cluster, boundary, ranks=ranks, recompute=recompute, memory_weight=weight)
    assert found.termination is Termination.OPTIMAL
    assert set(found.strategies) == {op.name for op in llama.ops}
    cost = _cost(llama, dict(found.strategies), cluster, boundary, ranks)
    expected = _objective(llama, cost, recompute=recompute, weight=weight)
    assert found.objective == pytest.approx(expected, rel=1e-9)
    assert {name for name, (_, partial) in found.placements.items() if partial} == set(
        cost.partial_grads
    )


@pytest.mark.parametrize("boundary", [R, Shard(1)], ids=str)
@pytest.mark.parametrize("recompute", list(Recompute))
@pytest.mark.parametrize("ranks", [2, 8])
def test_objective_is_the_closed_form_of_a_compiled_block(
    llama: BlockClass, cluster: Cluster, boundary: Placement, recompute: Recompute, ranks: int
) -> None:
    compiled = _compiled(cluster)
    found = _solve(llama, compiled, boundary, ranks=ranks, recompute=recompute)
    chosen = dict(found.strategies)
    cost = _cost(llama, chosen, compiled, boundary, ranks)
    assert found.objective == pytest.approx(
        _objective(llama, cost, recompute=recompute, weight=0.0), rel=1e-9
    )
    eager = _cost(llama, chosen, cluster, boundary, ranks)
    assert cost.forward < eager.forward
    assert cost.backward < eager.backward


def _compiled(cluster: Cluster) -> Cluster:
    return replace(cluster, accelerator=replace(cluster.accelerator, compiled=True))


def _head(vocabulary: int) -> BlockClass:
    """Head and loss of a language model."""
    shapes = {
        "x": ((4, 64, 512), TensorKind.BOUNDARY),
        "w": ((vocabulary, 512), TensorKind.PARAMETER),
        "labels": ((256,), TensorKind.SHARED),
        "logits": ((4, 64, vocabulary), TensorKind.ACTIVATION),
        "rows": ((256, vocabulary), TensorKind.ACTIVATION),
        "loss": ((), TensorKind.ACTIVATION),
    }
    tensors = tuple(
        Tensor(
            name=name,
            shape=shape,
            dtype="int64" if name == "labels" else "float32",
            kind=kind,
            requires_grad=name != "labels",
            base="logits" if name == "rows" else name,
        )
        for name, (shape, kind) in shapes.items()
    )
    flop = 2 * 256 * 512 * vocabulary
    ops = (
        Op(name="head", target="aten.linear.default", args=(Ref("x"), Ref("w")),
           outputs=("logits",), flop=flop, flop_backward=2 * flop, saved=("x",)),
        Op(name="view", target="aten.view.default", args=(Ref("logits"), (256, vocabulary)),
           outputs=("rows",)),
        Op(name="loss", target="aten.cross_entropy_loss.default", args=(Ref("rows"), Ref("labels")),
           outputs=("loss",), saved=("labels",), saved_extra=4 * 256 * vocabulary),
    )  # fmt: skip
    return BlockClass(
        name="head", ops=ops, tensors=tensors, inputs=("x",), outputs=("loss",),
        parameters=("w",), buffers=(), shared=("labels",),
    )  # fmt: skip


def _solve_head(block: BlockClass, cluster: Cluster, ranks: int, weight: float) -> BlockSolution:
    storage = Shard(0, pad=block.tensor("w").shape[0] % ranks != 0)
    return _solve(block, cluster, R, ranks=ranks, fixed={"w": storage}, memory_weight=weight)


@pytest.mark.parametrize("weight", [0.0, 1e-12])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_padded_vocabulary_costs_what_the_padded_size_costs(
    cluster: Cluster, ranks: int, weight: float
) -> None:
    odd, even = _head(50257), _head(-(-50257 // ranks) * ranks)
    found = _solve_head(odd, cluster, ranks, weight)
    whole = _solve_head(even, cluster, ranks, weight)
    assert found.strategies["loss"].call == "vocab_cross_entropy"
    assert found.placements["w"] == (Shard(0, pad=True), False)
    assert found.objective == pytest.approx(whole.objective, rel=1e-12)
    cost = block_cost(odd, found.strategies, (R,), (R,), Group(ranks, ranks), cluster)
    assert found.objective == pytest.approx(
        _objective(odd, cost, recompute=Recompute.NONE, weight=weight), rel=1e-12
    )
    padded = block_cost(even, whole.strategies, (R,), (R,), Group(ranks, ranks), cluster)
    assert cost == padded


def _small_block(cluster: Cluster) -> BlockClass:
    """Two readers of one tensor, a residual, a parameter used elementwise."""
    tensors = {
        name: Tensor(
            name=name, shape=shape, dtype="float32", kind=kind, requires_grad=True, base=name
        )
        for name, shape, kind in (
            ("x", (4, 64, 512), TensorKind.BOUNDARY),
            ("scale", (512,), TensorKind.PARAMETER),
            ("w", (512, 512), TensorKind.PARAMETER),
            ("a", (4, 64, 512), TensorKind.ACTIVATION),
            ("b", (4, 64, 512), TensorKind.ACTIVATION),
            ("c", (4, 64, 512), TensorKind.ACTIVATION),
        )
    }
    flop = 2 * 4 * 64 * 512 * 512
    ops = (
        Op(name="op0", target="aten.mul.Tensor", args=(Ref("x"), Ref("scale")), outputs=("a",),
           saved=("x", "scale")),
        Op(name="op1", target="aten.linear.default", args=(Ref("a"), Ref("w")), outputs=("b",),
           flop=flop, flop_backward=2 * flop, saved=("a", "w")),
        Op(name="op2", target="aten.add.Tensor", args=(Ref("a"), Ref("b")), outputs=("c",)),
    )  # fmt: skip
    return BlockClass(
        name="small", ops=ops, tensors=tuple(tensors.values()), inputs=("x",), outputs=("c",),
        parameters=("scale", "w"), buffers=(), shared=(),
    )  # fmt: skip


@pytest.mark.parametrize("boundary", [R, Shard(1), Shard(2)], ids=str)
@pytest.mark.parametrize("weight", [0.0, 1e-12])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_no_combination_of_strategies_is_cheaper(
    cluster: Cluster, boundary: Placement, weight: float, compiled: bool
) -> None:
    block = _small_block(cluster)
    cluster = _compiled(cluster) if compiled else cluster
    found = _solve(block, cluster, boundary, ranks=2, memory_weight=weight)
    best = float("inf")
    options = [strategies(op, block, 2) for op in block.ops]
    for combination in itertools.product(*options):
        chosen = {op.name: s for op, s in zip(block.ops, combination, strict=True)}
        try:
            cost = _cost(block, chosen, cluster, boundary, 2)
        except InternalError:
            continue
        best = min(best, _objective(block, cost, recompute=Recompute.NONE, weight=weight))
    assert found.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("weight", [0.0, 1e-12])
def test_the_runner_up_is_the_best_without_what_is_barred(cluster: Cluster, weight: float) -> None:
    block = _small_block(cluster)
    free = _solve(block, cluster, R, ranks=2, memory_weight=weight)
    options = [strategies(op, block, 2) for op in block.ops]
    costs = []
    for combination in itertools.product(*options):
        chosen = {op.name: s for op, s in zip(block.ops, combination, strict=True)}
        try:
            cost = _cost(block, chosen, cluster, R, 2)
        except InternalError:
            continue
        seconds = _objective(block, cost, recompute=Recompute.NONE, weight=weight)
        stored = {name: p for name, (p, _) in parameter_states(block, chosen).items()}
        costs.append((seconds, chosen, stored))
    for name, strategy in free.strategies.items():
        found = _solve(block, cluster, R, ranks=2, memory_weight=weight, barred=((name, strategy),))
        assert found.strategies[name] != strategy
        best = min(seconds for seconds, chosen, _ in costs if chosen[name] != strategy)
        assert found.objective == pytest.approx(best, rel=1e-9)
        assert found.objective >= free.objective
    for option in (R, Shard(0), Shard(1)):
        pinned = _solve(block, cluster, R, ranks=2, memory_weight=weight, fixed={"w": option})
        best = min(seconds for seconds, _, stored in costs if stored["w"] == option)
        assert pinned.objective == pytest.approx(best, rel=1e-9)


def test_finds_megatron_with_sequence_parallelism(llama: BlockClass, cluster: Cluster) -> None:
    found = _solve(llama, cluster, Shard(1), partial_cost=1e-12)
    placements = {name: placement for name, (placement, _) in found.placements.items()}
    for column in ("q", "k", "v", "gate", "up"):
        assert placements[column] == Shard(0)
    assert placements["down"] == Shard(1)
    assert found.placements["norm1"] == (R, True)
    calls = collectives(llama, found.strategies, (Shard(1),), (Shard(1),), Group(8, 8), cluster)
    assert CollectiveKind.ALL_REDUCE not in {call.kind for call in calls}
    gathers = [c for c in calls if c.kind is CollectiveKind.ALL_GATHER and not c.backward]
    assert len(gathers) == 2  # one copy for q, k and v, one for gate and up


def test_is_never_worse_than_replicated(mlp: BlockClass, cluster: Cluster) -> None:
    whole = {op.name: strategies(op, mlp, 8)[0] for op in mlp.ops}
    cost = _cost(mlp, whole, cluster, R)
    found = _solve(mlp, cluster, R)
    assert found.objective <= _objective(mlp, cost, recompute=Recompute.NONE, weight=0.0)


def test_fixed_parameter_keeps_its_storage(mlp: BlockClass, cluster: Cluster) -> None:
    free = _solve(mlp, cluster, Shard(1), partial_cost=1e-12)
    assert free.placements["down"][0] == Shard(1)
    fixed = _solve(mlp, cluster, Shard(1), fixed={"down": R}, partial_cost=1e-12)
    assert fixed.placements["down"][0] == R
    assert fixed.objective > free.objective


def test_impossible_storage_is_infeasible(mlp: BlockClass, cluster: Cluster) -> None:
    with pytest.raises(InfeasibleError, match="fixed parameters"):
        _solve(mlp, cluster, R, fixed={"down": Shard(1, 7)})


def test_memory_limit_holds_and_costs_time(llama: BlockClass, cluster: Cluster) -> None:
    # Slow links make sharding expensive, so that memory has to force it.
    slow = replace(cluster, intra=replace(cluster.intra, bandwidth=1e8))
    free = _solve(llama, slow, R)
    kept = _cost(llama, dict(free.strategies), slow, R).kept(Recompute.NONE)
    limit = kept * 2 // 3
    tight = _solve(llama, slow, R, memory_limit=limit)
    assert _cost(llama, dict(tight.strategies), slow, R).kept(Recompute.NONE) <= limit
    assert tight.objective > free.objective
    with pytest.raises(InfeasibleError, match="activations"):
        _solve(llama, slow, R, memory_limit=1000)


def test_no_time_is_a_solver_limit(mlp: BlockClass, cluster: Cluster) -> None:
    with pytest.raises(SolverLimitError):
        _solve(mlp, cluster, R, seconds=-1.0)


def test_same_question_same_answer(llama: BlockClass, cluster: Cluster) -> None:
    first = _solve(llama, cluster, Shard(1))
    second = _solve(llama, cluster, Shard(1))
    assert first.strategies == second.strategies
    assert list(first.strategies) == [op.name for op in llama.ops]


@pytest.mark.parametrize("boundary", [R, Shard(1)], ids=str)
@pytest.mark.parametrize("weight", [0.0, 1e-12])
def test_arrays_and_pulp_give_the_same_optimum(
    llama: BlockClass, cluster: Cluster, boundary: Placement, weight: float
) -> None:
    arrays = _solve(llama, cluster, boundary, memory_weight=weight)
    pulp = _solve(llama, cluster, boundary, memory_weight=weight, handover=Handover.PULP)
    assert arrays.objective == pytest.approx(pulp.objective, rel=1e-9)


def test_a_llama_block_is_small_and_needs_no_branching(llama: BlockClass, cluster: Cluster) -> None:
    found = _solve(llama, cluster, Shard(1), memory_weight=1e-12)
    assert found.variables < 2000
    assert found.relaxation_integral


def _setting(block: BlockClass, boundary: Placement, recompute: Recompute, keeps: bool) -> Setting:
    return Setting(
        boundary_in=(boundary,) * len(block.inputs),
        boundary_out=(boundary,) * len(block.outputs),
        fixed=(),
        recompute=recompute,
        keeps=keeps,
    )


@pytest.mark.parametrize("recompute", list(Recompute))
def test_kept_programs_answer_in_any_order_what_new_ones_do(
    llama: BlockClass, cluster: Cluster, recompute: Recompute
) -> None:
    rng = random.Random(0)
    weights = [Weights(*(10 ** rng.uniform(-15, -11) for _ in range(3))) for _ in range(8)]
    settings = [_setting(llama, boundary, recompute, True) for boundary in (R, Shard(1))]
    questions = list(itertools.product(settings, weights))
    kept, cramped = BlockPrograms(cluster), BlockPrograms(cluster, room=0)
    group = Group(8, 8)

    def answers(
        programs: BlockPrograms, asked: list[tuple[Setting, Weights]]
    ) -> list[tuple[Mapping[str, OpStrategy], float]]:
        found = (programs.solve(llama, group, s, w, time.monotonic() + 30) for s, w in asked)
        return [(solution.strategies, solution.objective) for solution in found]

    first = answers(kept, questions)
    assert first == answers(cramped, questions[::-1])[::-1]
    assert first == answers(kept, questions[::-1])[::-1]
    assert (kept.asked, kept.built, kept.integral) == (32, 2, 32)
    for (setting, weight), (_, objective) in list(zip(questions, first, strict=True))[::5]:
        program = BlockProgram(llama, group, cluster, setting)
        deadline = time.monotonic() + 30
        through_pulp = program.solve(weight, deadline=deadline, handover=Handover.PULP)
        assert through_pulp.objective == pytest.approx(objective, rel=1e-9)


def test_programs_used_least_recently_make_room(llama: BlockClass, cluster: Cluster) -> None:
    settings = [_setting(llama, R, level, False) for level in Recompute]
    size = BlockProgram(llama, Group(2, 2), cluster, settings[0]).size
    programs = BlockPrograms(cluster, room=size * 5 // 2)
    for setting in (settings[0], settings[1], settings[0], settings[2], settings[0]):
        programs.solve(llama, Group(2, 2), setting, Weights(), time.monotonic() + 30)
    assert programs.built == 3
    assert programs.size <= size * 5 // 2
