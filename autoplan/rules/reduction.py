"""Reductions and scans: the dims that stay; a sum also over the dim that is sharded.

The mean of a slice is no addend of the mean (it lacks a factor of 1 / ranks), so a mean
over a sharded dim is not offered.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, S, rule

__all__ = ["reduction", "scan", "total"]


def _reduced(view: OpView) -> set[int]:
    ndim = len(view.shape())
    dims = view.integers(1, "dim")
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


@rule("aten.sum.default", "aten.sum.dim_IntList")
def total(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Sums: kept dims, addends, and addends from a sharded summed dim."""
    reduced = _reduced(view)
    yield from _kept(view, reduced)
    yield view.strategy({0: P}, P)
    for dim in sorted(reduced):
        for shard in view.shards(dim, view.shape()[dim]):
            yield view.strategy({0: shard}, P)


@rule("aten.mean.default", "aten.mean.dim")
def mean(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Means: kept dims, and addends."""
    yield from _kept(view, _reduced(view))
    yield view.strategy({0: P}, P)


@rule("aten.amax.default", "aten.amin.default", "aten.any.dim", "aten.all.dim",
      "aten.argmax.default", "aten.argmin.default", "aten.linalg_vector_norm.default",
      "aten.logsumexp.default", "aten.max.dim", "aten.min.dim", "aten.norm.ScalarOpt_dim",
      "aten.prod.dim_int", "aten.std.correction", "aten.std.dim", "aten.var.correction",
      "aten.var.dim")  # fmt: skip
def reduction(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Reductions that are not linear: kept dims."""
    index = 2 if "norm" in op.target else 1
    ndim = len(view.shape())
    dims = view.integers(index, "dim")
    yield from _kept(view, {d % ndim for d in dims} if dims else set(range(ndim)))


@rule("aten.cumsum.default", "aten.cumprod.default", "aten.logcumsumexp.default")
def scan(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Running totals: every other dim; a running sum is linear."""
    shape = view.shape()
    scanned = view.integer(1, "dim", 0) % max(len(shape), 1)
    for dim, size in enumerate(shape):
        if dim != scanned:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, shard)
    if op.target.startswith("aten.cumsum"):
        yield view.strategy({0: P}, P)
