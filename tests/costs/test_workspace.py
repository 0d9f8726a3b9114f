"""Bytes inside operators of the runtime, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.costs.workspace import workspace
from autoplan.ir.graph import Op, Ref
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.strategy import InnerCollective
from tests.costs.handmade_blocks import R, S, block, strategy, tensor


def convolution(*, grad):
    op = Op(name="conv", target="aten.conv2d.default", args=(Ref("x"), Ref("w")), outputs=("y",))
    made = block(
        [op],
        [
            tensor("x", (2, 8, 32, 32), dtype="float32", grad=grad),
            tensor("w", (8, 8, 3, 3), dtype="float32"),
            tensor("y", (2, 8, 32, 32), dtype="float32"),
        ],
        parameters=("w",),
    )
    return op, made


@pytest.mark.parametrize(("grad", "backward"), [(True, 2 * 36864 - 32768), (False, 36864)])
def test_a_convolution_on_rows_holds_its_window(grad, backward):
    op, made = convolution(grad=grad)
    size = 2 * 8 * 16 * 32 * 4  # of 2 ranks, each has 16 rows
    window = 2 * 8 * (16 + 2) * 32 * 4  # and one of each neighbour
    assert (size, window) == (32768, 36864)
    rows = InnerCollective(CollectiveKind.P2P, 4096, backward=False, copied=2 * window)
    back = replace(rows, backward=True)
    halos = strategy([S(2), R], [S(2)], call="halo_convolution", inner=(rows, back))
    # In backward the window again, with its gradient, of which the rank's own rows are the input's.
    assert workspace(op, made, halos, 2) == (window, backward)


def test_other_operators_hold_nothing_inside():
    op, made = convolution(grad=True)
    assert workspace(op, made, strategy([R, R], [R]), 2) == (0, 0)
