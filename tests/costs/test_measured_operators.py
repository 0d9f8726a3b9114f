"""Operators that were measured: what their times belong to, and that costs are just those."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade_blocks import MEGATRON, WHOLE, R, S, linear, strategy, tensor, two_matmuls
from handmade_blocks import block as make_block

from autoplan.costs.block import block_cost
from autoplan.costs.compute import measured_time, op_time
from autoplan.costs.signature import operator_signature
from autoplan.ir.graph import BlockClass, Op, Ref, TensorKind
from autoplan.ir.hardware import MeasuredOperators
from autoplan.ir.mesh import Group
from autoplan.ir.strategy import OpStrategy
from autoplan.profiles import load_cluster

CPU = load_cluster("cpu:2")


def signatures(block: BlockClass, strategies: dict[str, OpStrategy], ranks: int) -> list[str]:
    return [operator_signature(op, block, strategies[op.name], ranks) for op in block.ops]


def test_a_block_costs_exactly_what_was_measured() -> None:
    block = two_matmuls()
    up, down = signatures(block, WHOLE, 1)
    known = MeasuredOperators({up: (1.0, 2.0), down: (0.25, 0.5)})
    cluster = replace(CPU, accelerator=replace(CPU.accelerator, operators=known))
    cost = block_cost(block, WHOLE, (R,), (R,), Group(1, 1), cluster)
    assert (cost.forward, cost.backward) == (1.25, 2.5)
    # The same operators on half of the weights are others, which weren't measured.
    for op in block.ops:
        assert measured_time(op, block, MEGATRON[op.name], 2, cluster.accelerator) is None
        modelled = op_time(op, block, MEGATRON[op.name], 2, CPU.accelerator)
        assert op_time(op, block, MEGATRON[op.name], 2, cluster.accelerator) == modelled


def test_an_operator_that_failed_is_priced_by_the_model() -> None:
    block = two_matmuls()
    known = MeasuredOperators({})
    device = replace(CPU.accelerator, operators=known)
    op = block.ops[0]
    assert op_time(op, block, WHOLE[op.name], 1, device) == op_time(
        op, block, WHOLE[op.name], 1, CPU.accelerator
    )


def product(
    *,
    names: tuple[str, str, str] = ("x", "w", "y"),
    rows: int = 8,
    dtype: str = "float32",
    grad: bool = True,
) -> BlockClass:
    x, w, y = names
    return make_block(
        [linear("op", x, w, y, 1024)],
        [
            tensor(x, (rows, 16), TensorKind.BOUNDARY, dtype=dtype, grad=grad),
            tensor(w, (4, 16), TensorKind.PARAMETER, dtype=dtype),
            tensor(y, (rows, 4), dtype=dtype),
        ],
        parameters=(w,),
    )


def signature(block: BlockClass, chosen: OpStrategy | None = None, ranks: int = 1) -> str:
    chosen = chosen or strategy([R, R], [R])
    return operator_signature(block.ops[0], block, chosen, ranks)


def test_equal_work_has_equal_signatures() -> None:
    assert signature(product()) == signature(product(names=("a", "b", "c")))
    # Half of 16 rows on a rank are 8 rows.
    assert signature(product(rows=16), strategy([S(0), R], [S(0)]), 2) == signature(product())
    assert (
        signature(product())
        == "aten.linear.default(float32[8,16]g, float32[4,16]g) -> float32[8,4]g"
    )


def test_other_work_has_other_signatures() -> None:
    call = strategy([R, R], [R], call="row_parallel_linear")
    every = [
        signature(product()),
        signature(product(rows=16)),
        signature(product(dtype="bfloat16")),
        signature(product(grad=False)),
        signature(product(), strategy([R, S(0)], [S(1)]), 2),
        signature(product(), call, 2),
        signature(product(), call, 4),  # what the runtime does may depend on the ranks
    ]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("first", "second"), [((0.5,), (0.25,)), ((1,), (1.0,)), ((None,), (False,)), (("a",), ("b",))]
)
def test_other_literals_have_other_signatures(first: tuple[object], second: tuple[object]) -> None:
    def scaled(literals: tuple[object]) -> BlockClass:
        op = Op(
            name="op",
            target="aten.mul.Scalar",
            args=(Ref("x"), *literals),  # type: ignore[arg-type]
            outputs=("y",),
        )
        return make_block([op], [tensor("x", (8, 4)), tensor("y", (8, 4))])

    one = strategy([R], [R])
    assert signature(scaled(first), one) != signature(scaled(second), one)
    assert signature(scaled(first), one) == signature(scaled(first), one)
