"""Patches, diagonals and grids: views that are no factorisation of the dims."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["diagonal", "grid", "pixels", "strided", "windows"]


@rule("aten.unfold.default")
def windows(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Sliding windows of a dim, which become the last one; windows that do not overlap pass."""
    shape = view.shape()
    chosen = view.integer(1, "dimension", 0) % len(shape)
    size, step = view.integer(2, "size", 1), view.integer(3, "step", 1)
    for dim, length in enumerate(shape):
        if dim != chosen:
            for shard in view.shards(dim, length):
                yield view.strategy({0: shard}, shard)
        elif size == step and length % size == 0:
            yield view.strategy({0: S(dim)}, S(dim))
    yield view.strategy({0: P}, P)


@rule("aten.channel_shuffle.default")
def channel_shuffle(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Channels (dim 1) in another order: every other dim; linear."""
    for dim in range(len(view.shape())):
        if dim != 1:
            yield view.strategy({0: S(dim)}, S(dim))
    yield view.strategy({0: P}, P)


@rule("aten.im2col.default", "aten.col2im.default")
def patches(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Patches of an image as columns, and back: batch and channels; linear."""
    batched = len(view.shape()) - (3 if not op.target.startswith("aten.col2im") else 2)
    for dim in range(batched):
        yield view.strategy({0: S(dim)}, S(dim))
    yield view.strategy({0: S(batched)}, S(batched))
    if op.target.startswith("aten.im2col") and _tiles(view):
        yield view.strategy({0: S(batched + 1)}, S(batched + 1))
    yield view.strategy({0: P}, P)


def _tiles(view: OpView) -> bool:
    """Whether patches do not overlap: rows of patches are rows of the image."""
    kernel, dilation, padding, stride = (
        view.integers(index, name)
        for index, name in enumerate(("kernel_size", "dilation", "padding", "stride"), start=1)
    )
    height = view.shape()[-2]
    whole = bool(kernel) and height % kernel[0] == 0
    return whole and kernel == stride and set(dilation) == {1} and set(padding) == {0}


@rule("aten.pixel_shuffle.default", "aten.pixel_unshuffle.default")
def pixels(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Channels into pixels and back: each dim is the outer part of what it becomes."""
    for dim in range(len(view.shape())):
        yield view.strategy({0: S(dim)}, S(dim))
    yield view.strategy({0: P}, P)


@rule("aten.diagonal.default")
def diagonal(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """A diagonal, which becomes the last dim: the others; linear."""
    ndim = len(view.shape())
    gone = {view.integer(2, "dim1", 0) % ndim, view.integer(3, "dim2", 1) % ndim}
    kept = [dim for dim in range(ndim) if dim not in gone]
    for result, dim in enumerate(kept):
        for shard in view.shards(dim, view.shape()[dim]):
            yield view.strategy({0: shard}, S(result, shard.blocks))
    yield view.strategy({0: P}, P)


@rule("aten.diag_embed.default")
def diag_embed(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """The last dim becomes the diagonal of two last ones: the dims before; linear."""
    if len(op.args) < 3 and not op.kwargs:
        for dim, size in enumerate(view.shape()[:-1]):
            for shard in view.shards(dim, size):
                yield view.strategy({0: shard}, shard)
    yield view.strategy({0: P}, P)


@rule("aten.meshgrid.default", "aten.meshgrid.indexing")
def grid(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Each tensor's dim is one of all results."""
    swapped = view.arg(1, "indexing", "ij") == "xy" and len(view.inputs) > 1
    for slot, tensor in enumerate(view.inputs):
        if len(tensor.shape) == 1:
            dim = {0: 1, 1: 0}.get(slot, slot) if swapped else slot
            yield view.strategy({slot: S(0)}, S(dim))
    yield view.strategy(dict.fromkeys(range(len(view.inputs)), P), P)


@rule("aten.as_strided.default")
def strided(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Elements by their place in memory: only of the whole tensor."""
    yield view.strategy({}, R)
