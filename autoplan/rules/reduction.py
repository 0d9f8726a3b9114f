"""Reductions and scans: the dims that stay; where it is exact also the dim that is reduced.

A sum over a sharded dim gives addends. The mean of a slice is ``ranks`` times its addend, so
it goes through ``partial_mean`` of the runtime. A running sum along a sharded dim adds the
totals of the ranks before: ``sharded_cumsum``, one all_reduce of a total for each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op, dtype_size
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.strategy import InnerCollective, OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["mean", "reduction", "scan", "total"]


def _dims(view: OpView, index: int = 1) -> set[int]:
    """Dims that are reduced; all of them when the call names none."""
    ndim = len(view.shape())
    value = view.arg(index, "dim")
    items = value if isinstance(value, tuple) else (value,)
    dims = [d for d in items if isinstance(d, int) and not isinstance(d, bool)]
    return {dim % ndim for dim in dims} if dims and ndim else set(range(ndim))


def _kept(view: OpView, reduced: set[int]) -> Iterator[OpStrategy]:
    shape = view.shape()
    keeps_dims = len(view.output.shape) == len(shape)
    result = 0
    for dim, size in enumerate(shape):
        if dim not in reduced:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, S(result, shard.blocks))
        result += keeps_dims or dim not in reduced


def _addends(view: OpView, reduced: set[int], call: str = "") -> Iterator[OpStrategy]:
    for dim in sorted(reduced):
        for shard in view.shards(dim, view.shape()[dim]):
            yield view.strategy({0: shard}, P, call=call)


@rule("aten.sum.default", "aten.sum.dim_IntList")
def total(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Sums: kept dims, addends, and addends from a sharded summed dim."""
    reduced = _dims(view)
    yield from _kept(view, reduced)
    yield view.strategy({0: P}, P)
    yield from _addends(view, reduced)


@rule("aten.mean.default", "aten.mean.dim")
def mean(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Means: kept dims, addends, and a share of the mean from a sharded dim."""
    reduced = _dims(view)
    yield from _kept(view, reduced)
    yield view.strategy({0: P}, P)
    if not isinstance(view.arg(1), str):
        yield from _addends(view, reduced, call="partial_mean")


@rule("aten.amax.default", "aten.amin.default", "aten.aminmax.default", "aten.any.default",
      "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims",
      "aten.argmax.default", "aten.argmin.default", "aten.linalg_vector_norm.default",
      "aten.logsumexp.default", "aten.max.default", "aten.max.dim", "aten.median.dim",
      "aten.min.default", "aten.min.dim", "aten.norm.Scalar", "aten.norm.ScalarOpt_dim",
      "aten.prod.default", "aten.prod.dim_int", "aten.std.correction", "aten.std.default",
      "aten.std.dim", "aten.std_mean.correction", "aten.std_mean.dim", "aten.var.correction",
      "aten.var.default", "aten.var.dim", "aten.var_mean.correction",
      "aten.var_mean.dim")  # fmt: skip
def reduction(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Reductions that are not linear: kept dims."""
    yield from _kept(view, _dims(view, 2 if "norm" in op.target else 1))


@rule("aten.count_nonzero.dim_IntList", "aten.count_nonzero.default")
def count(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Counts: kept dims; integers are no addends."""
    yield from _kept(view, _dims(view))


@rule("aten.cumsum.default", "aten.cumprod.default", "aten.logcumsumexp.default",
      "aten.cummax.default", "aten.cummin.default")  # fmt: skip
def scan(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Running totals: every other dim; a running sum is linear, and passes between ranks."""
    shape = view.shape()
    scanned = view.integer(1, "dim", 0) % max(len(shape), 1)
    for dim, size in enumerate(shape):
        if dim != scanned:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, shard)
    if op.target.startswith("aten.cumsum") and shape:
        yield view.strategy({0: P}, P)
        yield _running_sum(view, scanned)


def _running_sum(view: OpView, scanned: int) -> OpStrategy:
    output = view.output
    row = output.numel // max(output.shape[scanned], 1) * dtype_size(output.dtype)
    inner = [InnerCollective(CollectiveKind.ALL_REDUCE, row * view.ranks)]
    if output.requires_grad:
        inner += [InnerCollective(CollectiveKind.ALL_REDUCE, row * view.ranks, backward=True)]
    return view.strategy({0: S(scanned)}, S(scanned), call="sharded_cumsum", inner=tuple(inner))


@rule("aten.nonzero.default", "aten.masked_select.default")
def selection(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Positions or elements that a condition selects: their number is known to no one rank."""
    yield view.strategy({}, R)
