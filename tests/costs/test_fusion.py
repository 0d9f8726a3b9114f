"""Fused kernels: groups, their bytes and launches, and their prices, worked out by hand."""

from dataclasses import replace

import pytest
from handmade_blocks import P, R, S, block, linear, strategy, tensor, unary

from autoplan.costs.compute import dispatches, op_time
from autoplan.costs.fusion import fusion
from autoplan.costs.resharding import conversion_time
from autoplan.costs.terms import changed_time
from autoplan.ir.graph import Op, Ref, TensorKind
from autoplan.ir.hardware import Curve
from autoplan.ir.mesh import Group
from autoplan.profiles import load_cluster

ROWS, WIDTH = 1024, 512
SHAPE, WIDE = (ROWS, WIDTH), (ROWS, 4 * WIDTH)
N = 2 * ROWS * WIDTH  # bytes of a narrow tensor; a wide one has four times as many
VECTOR = 2 * WIDTH
BANDWIDTH, LATENCY = 1e12, 2e-6


FLAT = Curve(((1.0, 0.5),))


def cluster(efficiency=FLAT):
    found = load_cluster("8xh100")
    device = replace(
        found.accelerator,
        compiled=True,
        memory_bandwidth=BANDWIDTH,
        memory_efficiency=efficiency,
        kernel_latency=LATENCY,
    )
    return replace(found, accelerator=device)


DEVICE = cluster().accelerator


def seconds(size, launches, efficiency=0.5):
    return size / (BANDWIDTH * efficiency) + launches * LATENCY


def binary(name, target, x, other, y, saved=()):
    return Op(name=name, target=target, args=(Ref(x), Ref(other)), outputs=(y,), saved=saved)


def norm(name, x, w, y):
    return Op(
        name=name,
        target="aten.rms_norm.default",
        args=(Ref(x), (WIDTH,), Ref(w)),
        outputs=(y,),
        saved=(x, w),
    )


def boundary(shape=SHAPE):
    return tensor("x", shape, TensorKind.BOUNDARY)


def weight(name, *shape):
    return tensor(name, shape, TensorKind.PARAMETER)


def feed_forward():
    """y = x + down(gelu(up(norm(x))))."""
    return block(
        [
            norm("norm", "x", "g", "n"),
            linear("up", "n", "w1", "h", 1),
            unary("act", "aten.gelu.default", "h", "a", saved=("h",)),
            linear("down", "a", "w2", "d", 1),
            binary("add", "aten.add.Tensor", "x", "d", "y"),
        ],
        [
            boundary(), weight("g", WIDTH), weight("w1", 4 * WIDTH, WIDTH),
            weight("w2", WIDTH, 4 * WIDTH), tensor("n", SHAPE), tensor("h", WIDE),
            tensor("a", WIDE), tensor("d", SHAPE), tensor("y", SHAPE),
        ],
        parameters=("g", "w1", "w2"),
    )  # fmt: skip


def gated():
    """y = down(silu(gate(x)) * up(x)): two members between products."""
    return block(
        [
            linear("gate", "x", "w1", "h", 1),
            linear("up", "x", "w2", "u", 1),
            unary("act", "aten.silu.default", "h", "a", saved=("h",)),
            binary("mul", "aten.mul.Tensor", "a", "u", "m", saved=("a", "u")),
            linear("down", "m", "w3", "y", 1),
        ],
        [
            boundary(), weight("w1", 4 * WIDTH, WIDTH), weight("w2", 4 * WIDTH, WIDTH),
            weight("w3", WIDTH, 4 * WIDTH), tensor("h", WIDE), tensor("u", WIDE),
            tensor("a", WIDE), tensor("m", WIDE), tensor("y", SHAPE),
        ],
        parameters=("w1", "w2", "w3"),
    )  # fmt: skip


def groups(made):
    return [
        (g.members, g.forward, g.backward, g.forward_launches, g.backward_launches)
        for g in fusion(made).groups
    ]


def test_products_end_groups_and_each_border_is_crossed_once():
    assert groups(feed_forward()) == [
        # Forward: x, g in, n out. Backward: gradient of n, x, g in, the residual's gradient of x
        # in and the sum out; then gradient of n and x again, for the gradient of g.
        (("norm",), 2 * N + VECTOR, (4 * N + VECTOR) + 2 * N, 1, 2),
        # Backward: h and the gradient of a in, the gradient of h out.
        (("act",), 8 * N, 12 * N, 1, 1),
        # A sum hands its gradient on, so its backward is no kernel.
        (("add",), 3 * N, 0, 1, 0),
    ]


def test_a_chain_is_one_kernel_and_keeps_what_is_between_out_of_memory():
    made = gated()
    # Forward: h, u in, m out. Backward: h, u, gradient of m in, those of h and u out.
    assert groups(made) == [(("act", "mul"), 12 * N, 20 * N, 1, 1)]
    assert fusion(made).inner == {"a"}
    assert fusion(made).written == {"m"}
    assert [dispatches(op, made, DEVICE) for op in made.ops[2:4]] == [(1, 1), (0, 0)]


def test_a_tensor_that_a_product_reads_too_is_written_and_its_gradients_added():
    made = block(
        [
            unary("act", "aten.silu.default", "x", "a", saved=("x",)),
            linear("up", "a", "w", "u", 1),
            unary("gate", "aten.sigmoid.default", "a", "y", saved=("y",)),
        ],
        [boundary(), weight("w", WIDTH, WIDTH)] + [tensor(name, SHAPE) for name in "auy"],
        parameters=("w",),
    )
    # Forward: x in, a (for the product) and y out. Backward: x, gradients of a and y in, one out.
    assert groups(made) == [(("act", "gate"), 3 * N, 4 * N, 1, 1)]


def test_no_group_waits_for_itself():
    """The sum needs the product of what the first operator made: one kernel can't be both."""
    made = block(
        [
            unary("act", "aten.relu.default", "x", "a", saved=("a",)),
            linear("up", "a", "w", "b", 1),
            binary("add", "aten.add.Tensor", "a", "b", "y"),
        ],
        [boundary(), weight("w", WIDTH, WIDTH)] + [tensor(name, SHAPE) for name in "aby"],
        parameters=("w",),
    )
    assert [g.members for g in fusion(made).groups] == [("act",), ("add",)]


def test_a_group_joins_two_makers_unless_one_needs_the_other():
    """c = sigmoid(x), d = sigmoid(x), y = c + d is one kernel; behind a product it is not."""
    ops = [
        unary("one", "aten.sigmoid.default", "x", "c"),
        unary("two", "aten.sigmoid.default", "x", "d"),
        binary("sum", "aten.add.Tensor", "c", "d", "y"),
    ]
    joined = block(ops, [boundary(), *(tensor(name, SHAPE) for name in "cdy")])
    assert groups(joined)[0][:2] == (("one", "two", "sum"), 2 * N)
    apart = block(
        [ops[0], linear("up", "c", "w", "p", 1), replace(ops[1], args=(Ref("p"),)), ops[2]],
        [boundary(), weight("w", WIDTH, WIDTH), *(tensor(name, SHAPE) for name in "cpdy")],
        parameters=("w",),
    )
    assert [g.members for g in fusion(apart).groups] == [("one",), ("two", "sum")]


@pytest.mark.parametrize(("dim", "fused"), [(-1, True), (1, True), (0, False), (-2, False)])
def test_softmax_is_fused_over_the_last_dim_only(dim, fused):
    op = Op(
        name="soft", target="aten.softmax.int", args=(Ref("x"), dim), outputs=("y",), saved=("y",)
    )
    made = block([op], [boundary(), tensor("y", SHAPE)])
    assert ("soft" in fusion(made).shares) is fused


@pytest.mark.parametrize(
    ("dims", "fused"), [((-1,), True), ((2, 1), True), ((0,), False), ((1,), False), ((), False)]
)
def test_sums_are_fused_over_trailing_dims_only(dims, fused):
    op = Op(name="sum", target="aten.sum.dim_IntList", args=(Ref("x"), dims), outputs=("y",))
    made = block([op], [boundary((4, 8, 16)), tensor("y", (4,))])
    assert ("sum" in fusion(made).shares) is fused


def test_a_view_between_members_is_free():
    made = block(
        [
            unary("act", "aten.sigmoid.default", "x", "a", saved=("a",)),
            unary("view", "aten.view.default", "a", "v"),
            unary("more", "aten.sigmoid.default", "v", "y", saved=("y",)),
        ],
        [boundary(), tensor("a", SHAPE), tensor("v", (WIDTH, ROWS), base="a"),
         tensor("y", (WIDTH, ROWS))],
    )  # fmt: skip
    assert groups(made) == [(("act", "more"), 2 * N, 3 * N, 1, 1)]
    assert fusion(made).absorbed == {"view"}
    free = op_time(made.ops[1], made, strategy([R], [R]), 1, DEVICE)
    assert (free.forward, free.backward) == (0.0, 0.0)


def test_members_together_take_what_the_kernel_takes():
    made = gated()
    choices = {"act": strategy([R], [R]), "mul": strategy([R, R], [R])}
    times = [op_time(op, made, choices[op.name], 1, DEVICE) for op in made.ops[2:4]]
    assert sum(t.forward for t in times) == pytest.approx(seconds(12 * N, 1))
    assert sum(t.backward for t in times) == pytest.approx(seconds(20 * N, 1))
    # In an eager program the four operands of two kernels are moved, and a is moved twice.
    eager = replace(DEVICE, compiled=False)
    times = [op_time(op, made, choices[op.name], 1, eager) for op in made.ops[2:4]]
    assert sum(t.forward for t in times) == pytest.approx(seconds((8 + 12) * N, 2))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_sharded_member_runs_at_the_rate_of_the_sharded_kernel(ranks):
    curve = Curve(((N, 0.1), (64 * N, 0.8)))
    device = cluster(curve).accelerator
    made, shard = gated(), S(1) if ranks > 1 else R
    act = op_time(made.ops[2], made, strategy([shard], [shard]), ranks, device)
    mul = op_time(made.ops[3], made, strategy([shard, shard], [shard]), ranks, device)
    forward, backward = 12 * N / ranks, 20 * N / ranks
    # The first member reads h and bears the launch; the second reads u and writes m.
    assert act.forward == pytest.approx(seconds(4 * N / ranks, 1, curve(forward)))
    assert mul.forward == pytest.approx(seconds(8 * N / ranks, 0, curve(forward)))
    assert act.backward + mul.backward == pytest.approx(seconds(backward, 1, curve(backward)))


def dropped():
    """y = dropout(silu(x))."""
    drop = Op(
        name="drop", target="aten.dropout.default", args=(Ref("a"), 0.1, True), outputs=("y",),
        saved_extra=ROWS * WIDTH,
    )  # fmt: skip
    return block(
        [unary("act", "aten.silu.default", "x", "a", saved=("x",)), drop],
        [boundary(), tensor("a", SHAPE), tensor("y", SHAPE)],
    )


def test_a_function_of_the_runtime_cuts_the_kernel():
    made = dropped()
    whole = strategy([R], [R], call="dropout")
    one = op_time(made.ops[1], made, whole, 1, DEVICE)
    assert one.forward == pytest.approx(seconds(N, 0))  # writes y; a stays in registers
    two = op_time(made.ops[1], made, strategy([S(0)], [S(0)], call="dropout"), 2, DEVICE)
    eager = op_time(made.ops[1], made, strategy([S(0)], [S(0)]), 2, replace(DEVICE, compiled=False))
    # Beside its own kernel: half of a is moved once more by the neighbour, in one more launch.
    cut = seconds(N / 2, 1)
    assert two.forward == pytest.approx(eager.forward + cut)
    assert two.backward == pytest.approx(eager.backward + cut)


@pytest.mark.parametrize(
    ("produced", "required", "forward", "backward"),
    [
        # a is local in other sizes on either side: half written, all read.
        (S(1), R, 6 * N, 6 * N),
        # Cut by a collective; the gradient is whole on both sides and passes through.
        (P, R, 8 * N, 0),
        (R, R, 0, 0),
    ],
)
def test_a_change_of_placement_between_members_cuts_the_kernel(
    produced, required, forward, backward
):
    made, machine, group = gated(), cluster(), Group(2, 1)
    plain = conversion_time(made.tensor("a"), produced, required, group, machine)
    found = changed_time("a", made, produced, required, group, machine)
    assert found.forward - plain.forward == pytest.approx(
        seconds(forward, 1) if forward else 0, abs=1e-15
    )
    assert found.backward - plain.backward == pytest.approx(
        seconds(backward, 1) if backward else 0, abs=1e-15
    )


def test_a_change_at_the_border_of_a_kernel_costs_no_cut():
    made, machine, group = gated(), cluster(), Group(2, 1)
    for name in ("h", "m"):
        plain = conversion_time(made.tensor(name), S(1), R, group, machine)
        assert changed_time(name, made, S(1), R, group, machine) == plain


def test_norms_that_read_a_tensor_in_common_sum_their_weights_gradients_in_one_kernel():
    """y = norm2(x + up(norm1(x)))."""
    made = block(
        [
            norm("one", "x", "g", "n"),
            linear("up", "n", "w", "u", 1),
            binary("add", "aten.add.Tensor", "x", "u", "s"),
            norm("two", "s", "k", "y"),
        ],
        [
            boundary(), weight("g", WIDTH), weight("k", WIDTH), weight("w", WIDTH, WIDTH),
            *(tensor(name, SHAPE) for name in "nusy"),
        ],
        parameters=("g", "w", "k"),
    )  # fmt: skip
    # Of one: n's gradient, x and the sum's gradient in, one out; then n's gradient, x.
    # Of two: y's gradient, x, u in, one out; then y's gradient and u: x was read for one.
    assert [(g.backward, g.backward_launches) for g in fusion(made).groups] == [
        (6 * N + VECTOR, 2),
        (6 * N + VECTOR, 1),
    ]


def test_of_a_relu_a_mask_of_a_byte_an_element_is_kept():
    made = block(
        [unary("act", "aten.relu.default", "x", "y", saved=("y",))],
        [boundary(), tensor("y", SHAPE)],
    )
    mask = N // 2
    assert groups(made) == [(("act",), 2 * N + mask, 2 * N + mask, 1, 1)]


def test_a_sum_of_a_view_hands_its_gradient_on():
    made = block(
        [
            linear("up", "x", "w", "u", 1),
            unary("view", "aten.view.default", "u", "v"),
            binary("add", "aten.add.Tensor", "b", "v", "y"),
        ],
        [
            boundary(), tensor("b", (2, ROWS // 2, WIDTH), TensorKind.BOUNDARY),
            weight("w", WIDTH, WIDTH), tensor("u", SHAPE),
            tensor("v", (2, ROWS // 2, WIDTH), base="u"), tensor("y", (2, ROWS // 2, WIDTH)),
        ],
        parameters=("w",),
    )  # fmt: skip
    assert groups(made) == [(("add",), 3 * N, 0, 1, 0)]


def test_gradients_of_a_tensor_that_shares_its_own_are_added_later():
    """y = norm(x + up(x)): up's gradient of x needs the one that x and the product share."""
    made = block(
        [
            linear("up", "x", "w", "u", 1),
            binary("add", "aten.add.Tensor", "x", "u", "s"),
            norm("norm", "s", "g", "y"),
        ],
        [boundary(), weight("w", WIDTH, WIDTH), weight("g", WIDTH)]
        + [tensor(name, SHAPE) for name in "usy"],
        parameters=("w", "g"),
    )
    # y's gradient, x, u in, one out; y's gradient, x, u in for g's; two gradients of x in, one out.
    assert [(g.backward, g.backward_launches) for g in fusion(made).groups] == [
        (4 * N + VECTOR + 3 * N + 3 * N, 3)
    ]
