"""Recompute levels of a feed-forward block, against sums made by hand."""

from dataclasses import replace

import pytest
from handmade_blocks import (
    HIDDEN,
    INNER,
    TOKENS,
    P,
    R,
    S,
    block,
    linear,
    strategy,
    tensor,
    unary,
)

from autoplan.costs.block import block_cost
from autoplan.costs.compute import op_time
from autoplan.ir.graph import TensorKind
from autoplan.ir.mesh import Group
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster

FLOP = 2 * TOKENS * HIDDEN * INNER
X, H = TOKENS * HIDDEN * 2, TOKENS * INNER * 2  # bytes of bfloat16


@pytest.fixture
def cluster():
    """8 H100 whose host is never late."""
    found = load_cluster("8xh100")
    return replace(found, accelerator=replace(found.accelerator, dispatch_latency=0.0))


def _feed_forward():
    """y = act(norm(x) w1') w2'."""
    return block(
        [
            unary("norm", "aten.layer_norm.default", "x", "n", saved=("x",)),
            linear("up", "n", "w1", "h", FLOP),
            unary("act", "aten.gelu.default", "h", "a", saved=("h",)),
            linear("down", "a", "w2", "y", FLOP),
        ],
        [
            tensor("x", (TOKENS, HIDDEN), TensorKind.BOUNDARY),
            tensor("w1", (INNER, HIDDEN), TensorKind.PARAMETER),
            tensor("w2", (HIDDEN, INNER), TensorKind.PARAMETER),
            tensor("n", (TOKENS, HIDDEN)),
            tensor("h", (TOKENS, INNER)),
            tensor("a", (TOKENS, INNER)),
            tensor("y", (TOKENS, HIDDEN)),
        ],
        parameters=("w1", "w2"),
    )


WHOLE = {
    "norm": strategy([R], [R]),
    "up": strategy([R, R], [R]),
    "act": strategy([R], [R]),
    "down": strategy([R, R], [R]),
}
MEGATRON = {
    "norm": strategy([R], [R]),
    "up": strategy([R, S(0)], [S(1)]),
    "act": strategy([S(1)], [S(1)]),
    "down": strategy([S(1), S(1)], [P]),
}
NONE, SELECTIVE, FULL = Recompute


def test_levels_on_one_rank(cluster):
    made = _feed_forward()
    cost = block_cost(made, WHOLE, (R,), (R,), Group(1, 1), cluster)
    assert cost.kept(NONE) == X + X + H + H
    # The result of the last product is the next block's input too: the stage counts it once.
    assert cost.kept(SELECTIVE) == X + H + X
    assert cost.kept(FULL) == X
    cheap = sum(
        op_time(op, made, WHOLE[op.name], 1, cluster.accelerator).forward
        for op in made.ops
        if not op.flop
    )
    assert cost.forward_again(NONE) == 0
    assert cost.forward_again(SELECTIVE) == pytest.approx(cheap, rel=1e-12)
    assert cost.forward_again(FULL) == cost.forward + cost.tp_forward


def test_collectives_are_kept_and_not_repeated(cluster):
    made = _feed_forward()
    cost = block_cost(made, MEGATRON, (R,), (R,), Group(2, 2), cluster)
    assert cost.tp_forward > 0
    # The addends are kept, and their sum, which is handed on.
    assert cost.kept(SELECTIVE) == X + H // 2 + X + X
    assert cost.tp_again == 0
    # In sequence parallelism the norm's result is gathered, and the sum is scattered.
    rows = {**MEGATRON, "norm": strategy([S(0)], [S(0)])}
    cost = block_cost(made, rows, (S(0),), (S(0),), Group(2, 2), cluster)
    assert cost.kept(SELECTIVE) == X // 2 + X + H // 2 + X + X // 2
    assert cost.tp_again == 0


def test_the_host_issues_all_operators_again(cluster):
    made = _feed_forward()
    slow = replace(cluster, accelerator=replace(cluster.accelerator, dispatch_latency=1.0))
    cost = block_cost(made, WHOLE, (R,), (R,), Group(1, 1), slow)
    assert cost.forward_again(SELECTIVE) == len(made.ops)
