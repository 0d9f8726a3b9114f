"""Block cost against closed forms worked out by hand."""

from dataclasses import replace

import pytest
from handmade_blocks import (
    HIDDEN,
    INNER,
    MEGATRON,
    TOKENS,
    WHOLE,
    P,
    R,
    S,
    linear,
    strategy,
    tensor,
    two_matmuls,
    unary,
)
from handmade_blocks import block as make_block

from autoplan.costs.block import CollectiveCall, HostCalls, block_cost, collectives
from autoplan.costs.collectives import collective_time
from autoplan.costs.terms import block_terms, parameter_states
from autoplan.errors import InternalError
from autoplan.ir.graph import Op, Ref, TensorKind
from autoplan.ir.hardware import Curve
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import InnerCollective
from autoplan.profiles import load_cluster

Kind = CollectiveKind
EIGHT, ONE = Group(8, 8), Group(1, 1)


@pytest.fixture
def ideal():
    """8 H100 that always reach their peaks and start kernels at once."""
    cluster = load_cluster("8xh100")
    flat = Curve(((1.0, 1.0),))
    return replace(
        cluster,
        accelerator=replace(
            cluster.accelerator,
            matmul_efficiency=flat,
            matmul_tiles=None,
            memory_efficiency=flat,
            attention_efficiency=1.0,
            kernel_latency=0.0,
        ),
    )


def test_whole_block_on_one_rank(ideal):
    cost = block_cost(two_matmuls(), WHOLE, (R,), (R,), ONE, ideal)
    flop = 4 * TOKENS * HIDDEN * INNER
    assert cost.forward == pytest.approx(flop / 989e12)
    assert cost.backward == pytest.approx(2 * flop / 989e12)
    assert cost.tp_forward == cost.tp_backward == 0.0
    # Saved: x and h. Parameters are not activations.
    assert cost.kept(Recompute.NONE) == 2 * TOKENS * (HIDDEN + INNER)
    assert cost.boundary == cost.boundary_out == 2 * TOKENS * HIDDEN
    assert cost.parameters == (("w1", INNER * HIDDEN, 2), ("w2", INNER * HIDDEN, 2))
    # Backward holds the gradients of y and h at once, then of h and x; and of one parameter.
    held = cost.held.at(Recompute.NONE)
    assert held.backward == 2 * TOKENS * (HIDDEN + INNER) + 2 * INNER * HIDDEN
    # When the first product's gradient is born, h is no longer kept, and larger.
    assert held.fresh == held.backward


def test_megatron_split(ideal):
    cost = block_cost(two_matmuls(), MEGATRON, (R,), (R,), EIGHT, ideal)
    whole = block_cost(two_matmuls(), WHOLE, (R,), (R,), ONE, ideal)
    assert cost.forward == pytest.approx(whole.forward / 8)
    assert cost.backward == pytest.approx(whole.backward / 8)
    payload = 2 * TOKENS * HIDDEN
    clone = 2 * payload / ideal.accelerator.memory_bandwidth
    once = collective_time(Kind.ALL_REDUCE, payload, EIGHT, ideal) + clone
    # One all_reduce of y forward, one of the gradient of x backward (R -> R*).
    assert cost.tp_forward == pytest.approx(once)
    assert cost.tp_backward == pytest.approx(once)
    assert cost.kept(Recompute.NONE) == 2 * TOKENS * (HIDDEN + INNER // 8)
    assert cost.parameters == (("w1", INNER * HIDDEN // 8, 2), ("w2", INNER * HIDDEN // 8, 2))
    assert cost.partial_grads == ()


def test_sequence_parallel_split(ideal):
    ends = (S(0),)
    cost = block_cost(two_matmuls(), MEGATRON, ends, ends, EIGHT, ideal)
    payload = 2 * TOKENS * HIDDEN
    once = sum(
        collective_time(kind, payload, EIGHT, ideal)
        for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
    )
    # The outermost dimension is gathered in order: no copies.
    assert cost.tp_forward == pytest.approx(once)
    assert cost.tp_backward == pytest.approx(once)
    assert collectives(two_matmuls(), MEGATRON, ends, ends, EIGHT, ideal) == (
        CollectiveCall(Kind.ALL_GATHER, payload, False),
        CollectiveCall(Kind.REDUCE_SCATTER, payload, True),
        CollectiveCall(Kind.REDUCE_SCATTER, payload, False),
        CollectiveCall(Kind.ALL_GATHER, payload, True),
    )
    # The linear saves the gathered input, not the shard it came from.
    assert cost.kept(Recompute.NONE) == 2 * TOKENS * (HIDDEN + INNER // 8)
    assert cost.boundary == cost.boundary_out == payload // 8
    calls = collectives(two_matmuls(), MEGATRON, ends, ends, EIGHT, ideal)
    for backward in (False, True):
        assert sum(call.payload for call in calls if call.backward is backward) == 2 * payload


def fan_out(consumers):
    """Several projections of the same input, summed: y = sum_i (x w_i') v_i'."""
    names = [str(i) for i in range(consumers)]
    flop = 2 * TOKENS * HIDDEN * HIDDEN
    ops, tensors = [], [tensor("x", (TOKENS, HIDDEN), TensorKind.BOUNDARY)]
    for i in names:
        ops.append(linear(f"q{i}", "x", f"w{i}", f"h{i}", flop))
        tensors += [
            tensor(f"w{i}", (HIDDEN, HIDDEN), TensorKind.PARAMETER),
            tensor(f"h{i}", (TOKENS, HIDDEN)),
        ]
    add = Op(
        name="add",
        target="aten.add.Tensor",
        args=tuple(Ref(f"h{i}") for i in names),
        outputs=("y",),
    )
    tensors.append(tensor("y", (TOKENS, HIDDEN)))
    return make_block([*ops, add], tensors, parameters=tuple(f"w{i}" for i in names))


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_a_converted_copy_is_paid_and_saved_once(ideal, consumers):
    choice = {f"q{i}": strategy([R, S(0)], [S(1)]) for i in range(consumers)}
    choice["add"] = strategy([S(1)] * consumers, [S(1)])
    made = fan_out(consumers)
    terms = block_terms(made, choice, (S(0),), (S(1),), EIGHT, ideal)
    moves = [t for t in terms.conversions if t.resharding.forward_kind is not None]
    assert [(t.tensor, str(t.required)) for t in moves] == [("x", "R*")]
    cost = block_cost(made, choice, (S(0),), (S(1),), EIGHT, ideal)
    assert cost.kept(Recompute.NONE) == 2 * TOKENS * HIDDEN  # the gathered x, whoever saves it


def test_block_cost_is_the_sum_of_its_terms(ideal):
    args = (two_matmuls(), MEGATRON, (R,), (S(0),), EIGHT, ideal)
    terms, cost = block_terms(*args), block_cost(*args)
    assert cost.forward == sum(t.forward for t in terms.ops)
    assert cost.tp_backward == pytest.approx(sum(t.resharding.backward for t in terms.conversions))
    assert {(t.tensor, str(t.produced), str(t.required)) for t in terms.conversions} == {
        ("x", "R", "R*"),
        ("h", "S(1)", "S(1)"),
        ("y", "P", "S(0)"),
    }


def test_inner_collectives_are_tp_time(ideal):
    inner = (
        InnerCollective(Kind.ALL_REDUCE, 4096),
        InnerCollective(Kind.ALL_REDUCE, 8192, backward=True),
    )
    choice = {**WHOLE, "down": strategy([R, R], [R], inner=inner)}
    cost = block_cost(two_matmuls(), choice, (R,), (R,), EIGHT, ideal)
    assert cost.tp_forward == collective_time(Kind.ALL_REDUCE, 4096, EIGHT, ideal)
    assert cost.tp_backward == collective_time(Kind.ALL_REDUCE, 8192, EIGHT, ideal)
    calls = collectives(two_matmuls(), choice, (R,), (R,), EIGHT, ideal)
    assert [(c.payload, c.backward) for c in calls] == [(4096, False), (8192, True)]


def norm_block():
    """A gain on each token, as a norm has: y = x * g."""
    mul = Op(
        name="mul",
        target="aten.mul.Tensor",
        args=(Ref("x"), Ref("g")),
        outputs=("y",),
        saved=("x", "g"),
    )
    return make_block(
        [mul],
        [
            tensor("x", (TOKENS, HIDDEN), TensorKind.BOUNDARY),
            tensor("g", (HIDDEN,), TensorKind.PARAMETER),
            tensor("y", (TOKENS, HIDDEN)),
        ],
        parameters=("g",),
    )


def test_partial_parameter_gradient_costs_nothing_per_microbatch(ideal):
    choice = {"mul": strategy([S(0), R], [S(0)])}
    cost = block_cost(norm_block(), choice, (S(0),), (S(0),), EIGHT, ideal)
    assert cost.partial_grads == ("g",)
    assert cost.tp_forward == cost.tp_backward == 0.0
    assert parameter_states(norm_block(), choice) == {"g": (R, True)}


def test_illegal_choices_are_our_bug(ideal):
    choice = {"up": strategy([R, S(0)], [S(1)]), "down": strategy([P, R], [P])}
    with pytest.raises(InternalError, match="h is produced as"):
        block_cost(two_matmuls(), choice, (R,), (R,), EIGHT, ideal)


def test_views_share_storage_and_cost_no_time(ideal):
    """x -> relu -> view -> view, saved twice through views: one storage, no kernel."""
    made = make_block(
        [
            unary("relu", "aten.relu.default", "x", "a", saved=("a",)),
            unary("v1", "aten.view.default", "a", "b"),
            unary("v2", "aten.transpose.int", "b", "c"),
            unary("sin", "aten.sin.default", "c", "y", saved=("c",)),
        ],
        [
            tensor("x", (64, 8), TensorKind.BOUNDARY),
            tensor("a", (64, 8)),
            tensor("b", (8, 64), base="a"),
            tensor("c", (64, 8), base="a"),
            tensor("y", (64, 8)),
        ],
    )
    choice = {op.name: strategy([R], [R]) for op in made.ops}
    cost = block_cost(made, choice, (R,), (R,), ONE, ideal)
    size = 64 * 8 * 2
    assert cost.kept(Recompute.NONE) == size
    # relu and sin each read and write; the views don't.
    assert cost.forward == pytest.approx(4 * size / ideal.accelerator.memory_bandwidth)
    # Backward: relu reads grad and a, sin reads grad and c; both write.
    assert cost.backward == pytest.approx(6 * size / ideal.accelerator.memory_bandwidth)


def test_view_of_a_copy_keeps_the_copy_alive(ideal):
    """A view of a reduce-scattered partial sum holds the shard, not the whole addend."""
    flop = 2 * TOKENS * HIDDEN * INNER
    made = make_block(
        [
            linear("down", "x", "w", "h", flop),
            unary("view", "aten.view.default", "h", "v"),
            unary("exp", "aten.exp.default", "v", "y", saved=("v",)),
        ],
        [
            tensor("x", (TOKENS, INNER), TensorKind.BOUNDARY),
            tensor("w", (HIDDEN, INNER), TensorKind.PARAMETER),
            tensor("h", (TOKENS, HIDDEN)),
            tensor("v", (TOKENS, 2, HIDDEN // 2), base="h"),
            tensor("y", (TOKENS, 2, HIDDEN // 2)),
        ],
        parameters=("w",),
    )
    choice = {
        "down": strategy([S(1), S(1)], [P]),
        "view": strategy([S(0)], [S(0)]),
        "exp": strategy([S(0)], [S(0)]),
    }
    cost = block_cost(made, choice, (S(1),), (S(0),), EIGHT, ideal)
    assert cost.kept(Recompute.NONE) == 2 * TOKENS * INNER // 8 + 2 * TOKENS * HIDDEN // 8
    # In forward the whole addend and its shard live together for a moment.
    assert cost.held.at(Recompute.NONE).backward >= 2 * TOKENS * HIDDEN


def test_dropout_like_extras_are_saved_locally(ideal):
    made = make_block(
        [
            Op(
                name="drop",
                target="aten.dropout.default",
                args=(Ref("x"), 0.1, True),
                outputs=("y",),
                saved_extra=4096,
            )
        ],
        [tensor("x", (64, 64), TensorKind.BOUNDARY), tensor("y", (64, 64))],
    )
    whole = block_cost(made, {"drop": strategy([R], [R])}, (R,), (R,), EIGHT, ideal)
    local = block_cost(made, {"drop": strategy([S(0)], [S(0)])}, (S(0),), (S(0),), EIGHT, ideal)
    assert whole.kept(Recompute.NONE) == 4096 and local.kept(Recompute.NONE) == 4096 // 8


def test_a_block_takes_no_less_than_its_host(ideal):
    made = two_matmuls()
    fast = block_cost(made, WHOLE, (R,), (R,), ONE, ideal)
    slow_host = replace(
        ideal, accelerator=replace(ideal.accelerator, dispatch_latency=10 * fast.backward)
    )
    slow = block_cost(made, WHOLE, (R,), (R,), ONE, slow_host)
    latency = 10 * fast.backward
    assert slow.forward == pytest.approx(latency * len(made.ops))
    # Of each product two gradients, and the sum of each weight's with earlier ones.
    products = sum(1 for op in made.ops if op.flop)
    views = len(made.ops) - products
    assert slow.backward == pytest.approx(latency * (3 * products + views))
    hooked = block_cost(made, WHOLE, (R,), (R,), ONE, slow_host, calls=HostCalls(hooks=1))
    assert hooked.forward == slow.forward
    assert hooked.backward == pytest.approx(slow.backward + latency * products)
    # Hidden where the device is slower.
    same = replace(ideal, accelerator=replace(ideal.accelerator, dispatch_latency=1e-12))
    hidden = block_cost(made, WHOLE, (R,), (R,), ONE, same)
    # What is kept is handed out by the host alone.
    assert hidden.again == pytest.approx(1e-12 * len(made.ops))
    assert replace(hidden, again=0.0) == fast


def test_a_host_that_waits_adds_its_time(ideal):
    made = two_matmuls()
    fast = block_cost(made, WHOLE, (R,), (R,), ONE, ideal)
    latency = fast.forward / 8  # issued ahead, it would hide
    slow = replace(ideal, accelerator=replace(ideal.accelerator, dispatch_latency=latency))
    ahead, waits = (
        block_cost(made, WHOLE, (R,), (R,), ONE, slow, calls=HostCalls(waits=waits))
        for waits in (False, True)
    )
    assert ahead.forward == pytest.approx(fast.forward)
    assert waits.forward == pytest.approx(fast.forward + latency * len(made.ops))
    products = sum(1 for op in made.ops if op.flop)
    issued = 3 * products + len(made.ops) - products
    assert waits.backward == pytest.approx(fast.backward + latency * issued)
