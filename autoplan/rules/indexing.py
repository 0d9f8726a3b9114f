"""Operators that move elements by computed positions: the dims they do not touch."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op, Ref
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["gather", "index", "index_select", "scatter", "sort"]


@rule("aten.gather.default")
def gather(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input``, dim, ``index``: dims of equal size; linear in ``input``."""
    yield from _alongside(view, (0, 1))
    yield view.strategy({0: P}, P)


@rule("aten.scatter.src", "aten.scatter_add.default", "aten.scatter_.src",
      "aten.scatter_add_.default")  # fmt: skip
def scatter(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input``, dim, ``index``, ``src``: dims of equal size."""
    yield from _alongside(view, (0, 1, 2))


@rule("aten.scatter.value", "aten.scatter_.value")
def scatter_value(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input``, dim, ``index``, a number: dims of equal size."""
    yield from _alongside(view, (0, 1))


def _alongside(view: OpView, slots: tuple[int, ...]) -> Iterator[OpStrategy]:
    shapes = [view.shape(slot) for slot in slots]
    touched = view.integer(1, "dim", 0) % max(len(shapes[0]), 1)
    for dim, size in enumerate(shapes[0]):
        if dim != touched and all(shape[dim] == size for shape in shapes):
            yield view.strategy(dict.fromkeys(slots, S(dim)), S(dim))


@rule("aten.index.Tensor")
def index(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Consecutive dims by index tensors: the positions looked up, and the dims left alone."""
    items = view.arg(1, "indices")
    indices = items if isinstance(items, tuple) else ()
    slots = view.slots(1, "indices")
    taken = [dim for dim, item in enumerate(indices) if isinstance(item, Ref)]
    if not taken or taken != list(range(taken[0], taken[-1] + 1)):
        return
    if any(view.inputs[slot].dtype == "bool" for slot in slots):
        return
    shape, first, end = view.shape(), taken[0], taken[-1] + 1
    added = len(view.output.shape) - (len(shape) - len(taken))
    if len({view.shape(slot) for slot in slots}) == 1:
        for dim in range(added):
            yield view.strategy(dict.fromkeys(slots, S(dim)), S(first + dim))
    for dim, size in enumerate(shape):
        if dim < first or dim >= end:
            result = dim if dim < first else dim - len(taken) + added
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, S(result, shard.blocks))
    yield view.strategy({0: P}, P)


@rule("aten.index_select.default")
def index_select(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Positions of the index, or any other dim; linear."""
    shape = view.shape()
    chosen = view.integer(1, "dim", 0) % len(shape)
    for dim in range(len(shape)):
        inputs: dict[int | None, Placement] = {1: S(0)} if dim == chosen else {0: S(dim)}
        yield view.strategy(inputs, S(dim))
    yield view.strategy({0: P}, P)


@rule("aten.sort.default", "aten.sort.stable", "aten.topk.default", "aten.argsort.default")
def sort(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Every dim but the sorted one."""
    at = {"topk": 2}.get(op.target.split(".")[1], 1)
    shape = view.shape()
    touched = view.integer(at, "dim", -1) % max(len(shape), 1)
    for dim, size in enumerate(shape):
        if dim != touched:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, shard)


@rule("aten.one_hot.default")
def one_hot(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim of the classes, where their number is given (else it depends on the values)."""
    if view.integer(1, "num_classes", -1) > 0:
        for dim in range(len(view.shape())):
            yield view.strategy({0: S(dim)}, S(dim))


@rule("aten.histc.default", "aten.bincount.default", "aten.nonzero.default",
      "aten.index_put.default", "aten.index_put_.default", "aten.searchsorted.Tensor")  # fmt: skip
def whole(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Every element may matter to every other: replicated only."""
    yield view.strategy({}, R)
