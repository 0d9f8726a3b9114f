"""Operators that move elements by computed positions.

Dims that no position refers to stay sharded. Along the dim that positions refer to, looked-up
results may be sharded with their positions, and what is added at positions gives addends: a
rank adds its share of the tensor that is added to (``partial_scatter_add`` and its kin).
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op, Ref
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["gather", "index", "index_add", "index_put", "index_select", "scatter", "sort"]


@rule("aten.gather.default", "aten.take_along_dim.default")
def gather(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Dims of equal size, and the positions themselves; linear in ``input``."""
    chosen = view.arg(1 if op.target.startswith("aten.gather") else 2, "dim")
    shape, index = view.shape(0), view.shape(1)
    if not isinstance(chosen, int):  # of the flattened input
        for dim, size in enumerate(index):
            for shard in view.shards(dim, size):
                yield view.strategy({1: shard}, shard)
    elif index and len(shape) == len(index):
        dim = chosen % len(shape)
        yield from _alongside(view, (0, 1), dim)
        for shard in view.shards(dim, index[dim]):
            yield view.strategy({1: shard}, shard)
    yield view.strategy({0: P}, P)


def _alongside(view: OpView, slots: tuple[int, ...], touched: int) -> Iterator[OpStrategy]:
    """Shards of the dims in which tensors of these slots have one size."""
    shapes = [view.shape(slot) for slot in slots]
    for dim, size in enumerate(shapes[0]):
        if dim != touched and all(shape[dim] == size for shape in shapes):
            for shard in view.shards(dim, size):
                yield view.strategy(dict.fromkeys(slots, shard), shard)


_SCATTERS = ("scatter", "scatter_add", "scatter_reduce")


@rule(*(f"aten.{name}{end}" for name in _SCATTERS for end in ("", "_")))
def scatter(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input``, dim, ``index`` and ``src`` or a number: dims of equal size.

    Only dims in which positions are as many as elements: others leave some untouched.
    """
    dim = view.integer(1, "dim", 0) % max(len(view.shape()), 1)
    yield from _alongside(view, tuple(range(len(view.inputs))), dim)
    if len(view.inputs) < 3 or not view.shape(1):
        return
    adds = op.target.startswith("aten.scatter_add")
    if adds or op.target.startswith(("aten.scatter.src", "aten.scatter_.src")):
        yield view.strategy({0: P, 2: P}, P)
    if adds:
        for shard in view.shards(dim, view.shape(1)[dim]):
            yield view.strategy({1: shard, 2: shard}, P, call="partial_scatter_add")
            yield view.strategy({0: P, 1: shard, 2: shard}, P)


@rule("aten.index_add.default", "aten.index_add_.default", "aten.index_copy.default",
      "aten.index_copy_.default", "aten.index_reduce.default")  # fmt: skip
def index_add(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``input``, dim, ``index [n]``, ``source``: the other dims; added rows give addends."""
    shape, source = view.shape(0), view.shape(2)
    if len(source) != len(shape) or not shape:
        return
    touched = view.integer(1, "dim", 0) % len(shape)
    for dim, size in enumerate(shape):
        if dim != touched:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard, 2: shard}, shard)
    if op.target.startswith("aten.index_reduce"):
        return
    yield view.strategy({0: P, 2: P}, P)
    if op.target.startswith("aten.index_add"):
        for shard in view.shards(touched, source[touched]):
            inputs: dict[int | None, Placement] = {1: S(0, shard.blocks), 2: shard}
            yield view.strategy(inputs, P, call="partial_index_add")
            yield view.strategy({0: P, **inputs}, P)


@rule("aten.index_fill.int_Scalar", "aten.index_fill_.int_Scalar")
def index_fill(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Rows set to a number: the other dims; addends where it is zero."""
    shape = view.shape(0)
    touched = view.integer(1, "dim", 0) % max(len(shape), 1)
    for dim, size in enumerate(shape):
        if dim != touched:
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, shard)
    if view.arg(3, "value", 1) == 0:
        yield view.strategy({0: P}, P)


@rule("aten.index_put.default", "aten.index_put_.default")
def index_put(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Elements set or added at positions of the leading dims: the dims after them.

    Added elements also by position: their addends.
    """
    shape, indices = view.shape(0), view.arg(1, "indices")
    items = indices if isinstance(indices, tuple) else ()
    slots = view.slots(1, "indices")
    values = view.slot(2, "values")
    leading = len(items) == len(slots) and all(isinstance(item, Ref) for item in items)
    if not leading or values is None or any(view.inputs[s].dtype == "bool" for s in slots):
        return
    at = len(items)
    looked_up = view.shape(slots[0])
    added = view.shape(values)
    if any(view.shape(slot) != looked_up for slot in slots):
        return
    offset = len(looked_up) - at
    for dim in range(at, len(shape)):
        for shard in view.shards(dim, shape[dim]):
            inputs: dict[int | None, Placement] = {0: shard}
            own = dim + offset - (len(looked_up) + len(shape) - at - len(added))
            if own >= 0 and added[own] == shape[dim]:
                inputs[values] = S(own, shard.blocks)
            yield view.strategy(inputs, shard)
    yield view.strategy({0: P, values: P}, P)
    if view.arg(3, "accumulate", False) is not True:
        return
    missing = len(looked_up) + len(shape) - at - len(added)
    for dim, size in enumerate(looked_up):
        placed: dict[int | None, Placement] = dict.fromkeys(slots, S(dim))
        own = dim - missing
        if own >= 0 and added[own] == size:
            placed[values] = S(own)
        yield view.strategy(placed, P, call="partial_index_put")
        yield view.strategy({0: P, **placed}, P)


@rule("aten.index.Tensor")
def index(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Dims by index tensors: the positions looked up, and the dims left alone."""
    items = view.arg(1, "indices")
    indices = items if isinstance(items, tuple) else ()
    slots = view.slots(1, "indices")
    taken = [dim for dim, item in enumerate(indices) if isinstance(item, Ref)]
    if not taken:
        return
    if any(view.inputs[slot].dtype == "bool" for slot in slots):
        return
    shape = view.shape()
    added = len(view.output.shape) - (len(shape) - len(taken))
    # Positions of dims that are not consecutive come first in the result.
    together = taken == list(range(taken[0], taken[-1] + 1))
    first = taken[0] if together else 0
    for dim in range(added):
        inputs: dict[int | None, Placement] = {}
        for slot in slots:
            own = dim - (added - len(view.shape(slot)))
            if own >= 0 and view.shape(slot)[own] == view.output.shape[first + dim]:
                inputs[slot] = S(own)
        yield view.strategy(inputs, S(first + dim))
    kept = [dim for dim in range(len(shape)) if dim not in taken]
    for place, dim in enumerate(kept):
        result = place if place < first else place + added
        for shard in view.shards(dim, shape[dim]):
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


@rule(
    "aten.sort.default",
    "aten.sort.stable",
    "aten.topk.default",
    "aten.argsort.default",
    "aten.argsort.stable",
    "aten.kthvalue.default",
    "aten.msort.default",
)
def sort(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Every dim but the sorted one."""
    at = {"topk": 2, "kthvalue": 2}.get(op.target.split(".")[1], 1)
    shape = view.shape()
    last = 0 if op.target.startswith("aten.msort") else -1
    touched = view.integer(at, "dim", last) % max(len(shape), 1)
    dropped = len(view.output.shape) < len(shape)
    for dim, size in enumerate(shape):
        if dim != touched:
            for shard in view.shards(dim, size):
                result = dim - (dropped and dim > touched)
                yield view.strategy({0: shard}, S(result, shard.blocks))


@rule("aten.one_hot.default")
def one_hot(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim of the classes, where their number is given (else it depends on the values)."""
    if view.integer(1, "num_classes", -1) > 0:
        for dim in range(len(view.shape())):
            yield view.strategy({0: S(dim)}, S(dim))


@rule("aten.histc.default")
def histogram(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Counts in a given range: addends; without one the range is that of all values."""
    yield view.strategy({}, R)
    low, high = view.arg(2, "min", 0), view.arg(3, "max", 0)
    if isinstance(low, int | float) and isinstance(high, int | float) and low < high:
        for dim, size in enumerate(view.shape()):
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, P)


@rule("aten.bincount.default", "aten.unique_consecutive.default")
def counts(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Counts over all elements: integers are no addends, and the values may give the range."""
    yield view.strategy({}, R)


@rule("aten.searchsorted.Tensor", "aten.bucketize.Tensor")
def searched(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Positions of values in a sorted row: the values, and rows where there are several."""
    row, values = (0, 1) if "searchsorted" in op.target else (1, 0)
    rows = len(view.shape(row))
    for dim, size in enumerate(view.shape(values)):
        several = rows > 1 and dim < rows - 1
        for shard in view.shards(dim, size):
            yield view.strategy({values: shard, row: shard if several else R}, shard)


@rule("aten.masked_scatter.default")
def masked_scatter(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Elements of ``source`` in order, where the mask is set: their number decides each place."""
    yield view.strategy({}, R)
