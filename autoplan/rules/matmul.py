"""Matrix products: rows, columns, contraction, batch.

A contraction split over the ranks gives addends. A bias would then be added once by every
rank, so such a product goes through ``row_parallel_linear`` or ``row_parallel_addmm`` of the
runtime: the same signature and ``axis``, and each rank adds ``bias / axis.size``. The bias
is whole on each rank and its gradient partial (g / n each), as the gradient law says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Op
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["addbmm", "addmm", "addmv", "baddbmm", "grouped", "linear"]


@rule("aten.linear.default")
def linear(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``x [..., in]``, ``weight [out, in]``, ``bias [out]`` -> ``[..., out]``."""
    bias = view.slot(2, "bias")
    shape = view.shape(0)
    last = len(shape) - 1
    if len(view.shape(1)) != 2:
        return
    for dim in range(last):
        for rows in view.shards(dim, shape[dim]):
            yield view.strategy({0: rows}, rows)
    for blocks in view.blocks(view.shape(1)[0]):
        yield view.strategy({1: S(0, blocks), bias: S(0, blocks)}, S(last, blocks))
    for padded in view.padded(0, view.shape(1)[0]):
        yield view.strategy({1: padded, bias: padded}, replace(padded, dim=last))
    call = "" if bias is None else "row_parallel_linear"
    for blocks in view.blocks(shape[last]):
        yield view.strategy({0: S(last, blocks), 1: S(1, blocks)}, P, call=call)


@rule("aten.addmm.default")
def addmm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``bias + mat1 [m, k] @ mat2 [k, n]`` with a bias that broadcasts to ``[m, n]``."""
    (m, k), n = view.shape(1), view.shape(2)[1]
    bias = view.shape(0)
    for blocks in view.blocks(m):
        yield view.strategy({0: _broadcast(bias, 0, m, 2, blocks), 1: S(0, blocks)}, S(0, blocks))
    for blocks in view.blocks(n):
        yield view.strategy({0: _broadcast(bias, 1, n, 2, blocks), 2: S(1, blocks)}, S(1, blocks))
    for padded in view.padded(1, n):
        own = len(bias) - 1
        added = replace(padded, dim=own) if bias and bias[own] == n else R
        yield view.strategy({0: added, 2: padded}, padded)
    for blocks in view.blocks(k):
        yield view.strategy({1: S(1, blocks), 2: S(0, blocks)}, P, call="row_parallel_addmm")


@rule("aten.baddbmm.default")
def baddbmm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input + batch1 @ batch2``; a split contraction adds each rank's share of ``input``."""
    added, out = view.shape(0), view.output.shape
    yield from _batches(view, (0, 1, 2))
    for blocks in view.blocks(out[1]):
        added_rows = _broadcast(added, 1, out[1], 3, blocks)
        yield view.strategy({0: added_rows, 1: S(1, blocks)}, S(1, blocks))
    for blocks in view.blocks(out[2]):
        added_columns = _broadcast(added, 2, out[2], 3, blocks)
        yield view.strategy({0: added_columns, 2: S(2, blocks)}, S(2, blocks))
    for blocks in view.blocks(view.shape(1)[2]):
        yield view.strategy({1: S(2, blocks), 2: S(1, blocks)}, P, call="row_parallel_baddbmm")


@rule("aten.addbmm.default")
def addbmm(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input + sum of batch1 @ batch2``: rows, columns, and shares of batch or contraction."""
    added, (m, n) = view.shape(0), view.output.shape
    yield view.strategy({0: _broadcast(added, 0, m, 2), 1: S(1)}, S(0))
    yield view.strategy({0: _broadcast(added, 1, n, 2), 2: S(2)}, S(1))
    yield view.strategy({1: S(0), 2: S(0)}, P, call="row_parallel_addbmm")
    yield view.strategy({1: S(2), 2: S(1)}, P, call="row_parallel_addbmm")


@rule("aten.addmv.default")
def addmv(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input + matrix @ vector``: rows, and the contraction in shares."""
    added = view.shape(0)
    yield view.strategy({0: _broadcast(added, 0, view.output.shape[0], 1), 1: S(0)}, S(0))
    yield view.strategy({1: S(1), 2: S(0)}, P, call="row_parallel_addmv")


@rule("aten._grouped_mm.default")
def grouped(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Tokens sorted by expert ``[t, k]`` with ``[e, k, n]``: columns and contraction.

    Tokens and experts are not split: the group ends are positions in all tokens.
    """
    if len(view.shape(0)) != 2 or len(view.shape(1)) != 3 or view.slot(3, "bias") is not None:
        return
    _, k, n = view.shape(1)
    for blocks in view.blocks(n):
        yield view.strategy({1: S(2, blocks)}, S(1, blocks))
    for blocks in view.blocks(k):
        yield view.strategy({0: S(1, blocks), 1: S(1, blocks)}, P)


def _broadcast(
    shape: tuple[int, ...], dim: int, size: int, ndim: int, blocks: int = 1
) -> Placement:
    """Placement of an operand that broadcasts, where the result is sharded in ``dim``."""
    own = dim - (ndim - len(shape))
    return S(own, blocks) if own >= 0 and shape[own] == size else R


def _batches(view: OpView, slots: tuple[int, ...]) -> Iterator[OpStrategy]:
    out = view.output.shape
    for dim in range(len(out) - 2):
        for blocks in view.blocks(out[dim]):
            inputs: dict[int | None, Placement] = {
                slot: _broadcast(view.shape(slot), dim, out[dim], len(out), blocks)
                for slot in slots
            }
            yield view.strategy(inputs, S(dim, blocks))
