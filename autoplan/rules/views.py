"""Operators that only move or select elements: all linear, so addends pass.

A view maps groups of consecutive dims onto each other. Seen in the group's flat order, a
shard of a dim is a shard in blocks, as many as the sizes of the dims before it multiply to:
so a shard passes exactly where the other side has a dim that cuts the flat order into the
same blocks. Local sizes come from that map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Arg, Op
from autoplan.ir.placement import Placement, Shard, shard_shape
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.blocks import view_groups
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["local_output_sizes", "with_arg"]


def with_arg(op: Op, index: int, name: str, value: Arg) -> Op:
    """``op`` with one argument replaced, where it is given."""
    if index < len(op.args):
        return replace(op, args=(*op.args[:index], value, *op.args[index + 1 :]))
    kwargs = tuple((key, value if key == name else old) for key, old in op.kwargs)
    return replace(op, kwargs=kwargs)


def local_output_sizes(view: OpView, strategy: OpStrategy) -> tuple[int, ...]:
    """Shape of the first output on one rank."""
    return shard_shape(view.output.shape, strategy.outputs[0], view.ranks)


def _localize_sizes(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    return with_arg(op, 1, "size", local_output_sizes(view, strategy))


def _localize_unflatten(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    dim = view.integer(1, "dim", 0) % len(view.shape())
    count = len(view.integers(2, "sizes"))
    sizes = local_output_sizes(view, strategy)[dim : dim + count]
    return with_arg(op, 2, "sizes", sizes)


@rule("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
      localizer=_localize_sizes)  # fmt: skip
def reshape(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Reshapes, by the factorisation of the view."""
    source, result = view.shape(), view.output.shape
    found: dict[tuple[Shard, Shard], None] = {}
    for ins, outs in view_groups(source, result):
        for dim in ins:
            for shard in view.shards(dim, source[dim]):
                image = _image(shard, source, ins, result, outs, view.ranks)
                if image is not None:
                    found.setdefault((shard, image))
        for dim in outs:
            for shard in view.shards(dim, result[dim]):
                origin = _image(shard, result, outs, source, ins, view.ranks)
                if origin is not None:
                    found.setdefault((origin, shard))
    for origin, shard in found:
        if {origin.blocks, shard.blocks} <= _known_blocks(view, origin, shard):
            yield view.strategy({0: origin}, shard)
    for ins, outs in view_groups(source, result):
        for dim in ins:
            for padded in view.padded(dim, source[dim]):
                images = [d for d in outs if result[d] == source[dim]]
                if images and all(source[d] == 1 for d in ins if d != dim):
                    yield view.strategy({0: padded}, replace(padded, dim=images[0]))
    yield view.strategy({0: P}, P)


def _known_blocks(view: OpView, origin: Shard, shard: Shard) -> set[int]:
    return {
        *view.blocks(view.shape()[origin.dim]),
        *view.blocks(view.output.shape[shard.dim]),
    }


def _image(
    shard: Shard,
    source: tuple[int, ...],
    source_dims: tuple[int, ...],
    result: tuple[int, ...],
    result_dims: tuple[int, ...],
    ranks: int,
) -> Shard | None:
    """Shard of ``result`` that holds the same elements as ``shard`` of ``source``."""
    blocks = shard.blocks
    for dim in source_dims:
        if dim == shard.dim:
            break
        blocks *= source[dim]
    if source[shard.dim] % (shard.blocks * ranks):
        return None
    before = 1
    for dim in result_dims:
        own, rest = divmod(blocks, before)
        if not rest and own and result[dim] % (own * ranks) == 0:
            return S(dim, own)
        before *= result[dim]
    return None


rule("aten.flatten.using_ints")(reshape)
rule("aten.unflatten.int", localizer=_localize_unflatten)(reshape)


def _mapped(view: OpView, dims: dict[int, int]) -> Iterator[OpStrategy]:
    """Shards of source dims that are dims of every output, whole; and addends."""
    for source, result in dims.items():
        for shard in view.shards(source, view.shape()[source]):
            yield view.strategy({0: shard}, S(result, shard.blocks))
        if view.shape()[source] == view.output.shape[result]:
            for padded in view.padded(source, view.shape()[source]):
                yield view.strategy({0: padded}, replace(padded, dim=result))
    yield view.strategy({0: P}, P)


@rule("aten.transpose.int", "aten.t.default", "aten.permute.default", "aten.movedim.int",
      "aten.movedim.intlist", "aten.swapaxes.default", "aten.swapdims.default", "aten.mT.default",
      "aten.mH.default", "aten.adjoint.default", "aten.numpy_T.default",
      "aten.matrix_H.default")  # fmt: skip
def permute(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Permutations of dims."""
    yield from _mapped(view, {old: new for new, old in enumerate(_order(op, view))})


def _order(op: Op, view: OpView) -> list[int]:
    """Source dim of each dim of the result."""
    ndim = len(view.shape())
    order = list(range(ndim))
    name = op.target.split(".")[1]
    if name == "permute":
        return [dim % ndim for dim in view.integers(1, "dims")]
    if name == "movedim":
        source = [dim % ndim for dim in view.integers(1, "source")]
        placed = dict(zip((d % ndim for d in view.integers(2, "destination")), source, strict=True))
        others = (dim for dim in order if dim not in source)
        return [placed[dim] if dim in placed else next(others) for dim in order]
    if name in {"mT", "mH", "adjoint", "matrix_H"}:
        return [*order[:-2], ndim - 1, ndim - 2]
    if name in {"transpose", "swapaxes", "swapdims"}:
        a, b = view.integer(1, "dim0", 0) % ndim, view.integer(2, "dim1", 0) % ndim
        order[a], order[b] = order[b], order[a]
        return order
    return order[::-1]


@rule("aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Dims of size 1 added or dropped: the other dims keep their order."""
    ins = [dim for dim, size in enumerate(view.shape()) if size > 1]
    outs = [dim for dim, size in enumerate(view.output.shape) if size > 1]
    pairs = list(zip(ins, outs, strict=True))
    if op.target.startswith("aten.squeeze"):
        # A dim of which a rank holds one element would be dropped too, if it is asked for.
        ndim = max(len(view.shape()), 1)
        named = {dim % ndim for dim in view.integers(1, "dim")}
        asked = named if len(op.args) > 1 else set(range(ndim))
        pairs = [(a, b) for a, b in pairs if view.shape()[a] > view.ranks or a not in asked]
    yield from _mapped(view, dict(pairs))


@rule("aten.expand.default", "aten.broadcast_to.default", localizer=_localize_sizes)
def expand(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Broadcast to a size: kept dims stay sharded, a new or repeated dim is made in part."""
    source, result = view.shape(), view.output.shape
    added = len(result) - len(source)
    for dim, size in enumerate(result):
        kept = dim >= added and source[dim - added] == size
        for shard in view.shards(dim, size):
            yield view.strategy({0: S(dim - added, shard.blocks) if kept else R}, shard)
    yield view.strategy({0: P}, P)


@rule("aten.broadcast_tensors.default")
def broadcast(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Broadcast against each other: any dim, in the tensors that have it; addends stay so."""
    shape = view.output.shape
    for dim, size in enumerate(shape):
        for shard in view.shards(dim, size):
            inputs: dict[int | None, Placement] = {}
            for slot, tensor in enumerate(view.inputs):
                own = dim - (len(shape) - len(tensor.shape))
                if own >= 0 and tensor.shape[own] == size > 1:
                    inputs[slot] = S(own, shard.blocks)
            yield view.strategy(inputs, shard)
    yield view.strategy(_every(view, P), P)


@rule("aten.select.int", "aten.unbind.int")
def select(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """One index, or each index, of a dim: the other dims."""
    ndim = len(view.shape())
    chosen = view.integer(1, "dim", 0) % ndim
    kept = [dim for dim in range(ndim) if dim != chosen]
    yield from _mapped(view, {dim: index for index, dim in enumerate(kept)})


@rule("aten.expand_as.default")
def expand_as(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Broadcast to the shape of another tensor, which is sharded likewise."""
    for strategy in expand(op, view):
        (placed,) = strategy.outputs
        like = placed if isinstance(placed, Shard) else R
        yield view.strategy({0: strategy.inputs[0], 1: like}, placed)


@rule("aten.view_as.default", "aten.reshape_as.default")
def reshape_as(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Reshaped like another tensor, which is sharded likewise."""
    for strategy in reshape(op, view):
        (placed,) = strategy.outputs
        like = placed if isinstance(placed, Shard) else R
        yield view.strategy({0: strategy.inputs[0], 1: like}, placed)


def _localize_piece(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    """Bounds of one of several equal pieces of a dim, on a rank."""
    origin, shard = strategy.inputs[0], strategy.outputs[0]
    dim = view.integer(1, "dim", 0) % len(view.shape())
    if not (isinstance(origin, Shard) and origin.dim == dim) or origin == shard:
        return op
    first = view.integer(2, "start", 0)
    length = view.output.shape[dim]
    op = with_arg(op, 2, "start", first // view.ranks)
    last = length if op.target.startswith("aten.narrow") else first + length
    return with_arg(op, 3, "end", last // view.ranks)


@rule("aten.slice.Tensor", "aten.narrow.default", localizer=_localize_piece)
def piece(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Part of a dim: the other dims; the dim itself where each rank has its part.

    That is where all is kept, every so many elements, or one of several equal pieces.
    """
    if len(view.inputs) != 1:
        return
    yield from part(op, view)
    shape, out = view.shape(), view.output.shape
    dim = view.integer(1, "dim", 0) % len(shape)
    start = view.integer(2, "start", 0)
    narrow = op.target.startswith("aten.narrow")
    step = 1 if narrow else view.integer(4, "step", 1)
    ends = start + out[dim] if narrow else view.integer(3, "end", shape[dim])
    if 0 <= start < step and shape[dim] % step == 0 and ends >= shape[dim]:
        for shard in view.shards(dim, shape[dim]):
            yield view.strategy({0: shard}, shard)
    pieces = shape[dim] // max(out[dim], 1)
    equal = step == 1 and pieces * out[dim] == shape[dim] and start >= 0
    if equal and pieces in view.blocks(shape[dim])[1:] and start % out[dim] == 0:
        yield view.strategy({0: S(dim, pieces)}, S(dim))


@rule("aten.flip.default", "aten.roll.default", "aten.diff.default")
def part(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Part or reordering of a dim: the other dims, and a dim that is kept whole."""
    touched = _touched(op, view)
    if len(view.inputs) != 1:
        return
    yield from _mapped(view, {d: d for d in range(len(view.shape())) if d not in touched})


def _touched(op: Op, view: OpView) -> set[int]:
    ndim = len(view.shape())
    if op.target.startswith("aten.flip"):
        return {dim % ndim for dim in view.integers(1, "dims")}
    if op.target.startswith("aten.roll"):
        dims = view.integers(2, "dims")
        return {dim % ndim for dim in dims} if dims else set(range(ndim))
    if op.target.startswith("aten.diff"):
        return {view.integer(2, "dim", -1) % ndim}
    dim = view.integer(1, "dim", 0) % ndim
    whole = view.shape()[dim] == view.output.shape[dim] and not view.integer(2, "start", 0)
    return set() if whole and op.target.startswith("aten.slice") else {dim}


def _localize_split(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    placement, output = strategy.inputs[0], strategy.outputs[0]
    dim = view.integer(2, "dim", 0) % len(view.shape())
    if not isinstance(output, Shard) or placement == output or output.dim != dim:
        return op
    sizes = view.arg(1)
    if isinstance(sizes, tuple):
        local: Arg = tuple(size // view.ranks for size in view.integers(1, "split_sizes"))
    elif op.target.split(".")[1] in {"chunk", "unsafe_chunk", "tensor_split"}:
        return op
    else:
        local = view.integer(1, "split_size", 1) // view.ranks
    return with_arg(op, 1, "split_sizes" if isinstance(sizes, tuple) else "split_size", local)


@rule("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default",
      "aten.chunk.default", "aten.tensor_split.sections", "aten.unsafe_chunk.default",
      "aten.unsafe_split.Tensor", localizer=_localize_split)  # fmt: skip
def split(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Pieces of a dim: the other dims, and the dim itself in as many blocks as pieces."""
    ndim = len(view.shape())
    dim = view.integer(2, "dim", 0) % ndim
    parts = {output.shape[dim] for output in view.outputs}
    if len(parts) == 1 and len(view.outputs) > 1:
        yield view.strategy({0: S(dim, len(view.outputs))}, S(dim))
    yield from _mapped(view, {d: d for d in range(ndim) if d != dim})


@rule("aten.cat.default", "aten.stack.default")
def concatenate(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Joined along a dim: the other dims; equal pieces also in blocks."""
    result = view.output.shape
    joined = view.integer(1, "dim", 0) % len(result)
    stacks = op.target.startswith("aten.stack")
    for dim, size in enumerate(result):
        if dim == joined:
            continue
        own = dim - 1 if stacks and dim > joined else dim
        for shard in view.shards(dim, size):
            yield view.strategy(_every(view, S(own, shard.blocks)), shard)
    pieces = len(view.inputs)
    equal = len({tensor.shape for tensor in view.inputs}) == 1
    if not stacks and equal and pieces in view.blocks(result[joined]):
        yield view.strategy(_every(view, S(joined)), S(joined, pieces))
    yield view.strategy(_every(view, P), P)


def _every(view: OpView, placement: Placement) -> dict[int | None, Placement]:
    return dict.fromkeys(range(len(view.inputs)), placement)


@rule("aten.repeat.default", "aten.tile.default")
def repeat(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Tiled: dims repeated once; a repeated dim in as many blocks."""
    times = view.integers(1, "repeats")
    times = (1,) * (len(view.shape()) - len(times)) + times
    added = len(times) - len(view.shape())
    for dim, count in enumerate(times):
        if dim >= added and count > 1 and count in view.blocks(view.output.shape[dim]):
            yield view.strategy({0: S(dim - added)}, S(dim, count))
    yield from _mapped(view, {d - added: d for d in range(added, len(times)) if times[d] == 1})


def _localize_repeats(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    """Without the whole result's length, which is only a hint."""
    return replace(op, kwargs=tuple(item for item in op.kwargs if item[0] != "output_size"))


@rule("aten.repeat_interleave.self_int", localizer=_localize_repeats)
def repeat_interleave(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Each element of a dim repeated: order is kept, so the dim itself may be sharded."""
    dim = view.arg(2, "dim")
    if not isinstance(dim, int):
        return
    yield from _mapped(view, {d: d for d in range(len(view.shape()))})


def _unpadded(view: OpView) -> set[int]:
    ndim = len(view.shape())
    amounts = view.integers(1, "pad")
    touched = {ndim - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    return set(range(ndim)) - touched


@rule("aten.pad.default", "aten.constant_pad_nd.default")
def pad(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Padded: dims that are not; addends unless a constant would be added by each rank."""
    for dim in sorted(_unpadded(view)):
        for shard in view.shards(dim, view.shape()[dim]):
            yield view.strategy({0: shard}, shard)
    if op.target.startswith("aten.pad"):
        constant = view.arg(2, "mode", "constant") == "constant"
        if not constant or not view.arg(3, "value", None):
            yield view.strategy({0: P}, P)
    elif not view.arg(2, "value", 0):
        yield view.strategy({0: P}, P)
