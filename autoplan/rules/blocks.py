"""In how many equal pieces the operators of a block cut their dimensions.

A fused projection (query, key and value in one weight) is cut by a ``split`` further on. It
can be sharded so that the cut stays local only in blocks: each rank holds its part of each
piece. Flattening batch and sequence makes blocks likewise: a shard of the sequence is, in
the flat dimension, a part of each sample. Rules try only the blocks found here.
"""

from __future__ import annotations

import math

from autoplan.ir.experts import EXPERTS, argument, experts_region
from autoplan.ir.graph import BlockClass, Op, aten_name
from autoplan.ir.memo import by_identity

__all__ = ["block_counts", "view_groups"]

_VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten")
_SPLITS = ("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split")
_PRODUCTS = ("linear", "addmm", "mm", "matmul", "bmm", "einsum")
_MAX_PACKED = 8  # packed projections hold few parts; more would be heads or pixels


@by_identity(512)
def block_counts(block: BlockClass) -> tuple[tuple[int, int], ...]:
    """Pairs (dim size, pieces > 1), sorted."""
    found: set[tuple[int, int]] = set()
    products = {out for op in block.ops if _name(op) in _PRODUCTS for out in op.outputs}
    for op in block.ops:
        name = _name(op)
        if name in _SPLITS:
            found.update(_split_count(op, block))
        elif name in _VIEWS:
            found.update(_view_counts(op, block))
        elif name == "glu":
            found.update((size, 2) for size in _changed(op, block))
        elif name == "slice" and op.inputs and op.inputs[0] in products:
            found.update(_slice_count(op, block))
        elif op.target == EXPERTS and argument(op, "layout") == "concatenated":
            region = experts_region(op, block.tensor)
            found.add((region.projected, 2))
    return tuple(sorted(found))


def _name(op: Op) -> str:
    return aten_name(op.target)


def _changed(op: Op, block: BlockClass) -> set[int]:
    """Sizes of the dims that the operator changes."""
    whole, part = block.tensor(op.inputs[0]).shape, block.tensor(op.outputs[0]).shape
    return {size for size, other in zip(whole, part, strict=True) if size != other}


def _slice_count(op: Op, block: BlockClass) -> set[tuple[int, int]]:
    """One of few equal pieces of a packed projection."""
    whole, part = block.tensor(op.inputs[0]).shape, block.tensor(op.outputs[0]).shape
    step = op.args[4] if len(op.args) > 4 else 1
    return {
        (size, size // length)
        for size, length in zip(whole, part, strict=True)
        if step == 1 and 0 < length < size and size % length == 0 and size // length <= _MAX_PACKED
    }


def _split_count(op: Op, block: BlockClass) -> set[tuple[int, int]]:
    whole = block.tensor(op.inputs[0]).shape
    shapes = [block.tensor(name).shape for name in op.outputs]
    if len(shapes) < 2 or any(shape != shapes[0] for shape in shapes):
        return set()
    pieces = len(shapes)
    return {
        (size, pieces)
        for size, part in zip(whole, shapes[0], strict=True)
        if part * pieces == size and part != size
    }


def _view_counts(op: Op, block: BlockClass) -> set[tuple[int, int]]:
    source, result = block.tensor(op.inputs[0]).shape, block.tensor(op.outputs[0]).shape
    found: set[tuple[int, int]] = set()
    for ins, outs in view_groups(source, result):
        merged = [source[d] for d in ins if source[d] > 1]
        parts = [result[d] for d in outs if result[d] > 1]
        if 0 in ins and len(merged) > 1:  # batch x sequence into rows
            found.update((result[d], merged[0]) for d in outs if result[d] % merged[0] == 0)
        if 0 in outs and len(parts) > 1:  # and back
            found.update((source[d], parts[0]) for d in ins if source[d] % parts[0] == 0)
        if len(merged) == 1 and len(parts) > 2 and parts[0] <= _MAX_PACKED:
            found.add((merged[0], parts[0]))  # (3, heads, head size)
    # More blocks than elements in each are samples of a few tokens: not worth trying.
    return {(size, pieces) for size, pieces in found if 1 < pieces <= size // pieces}


def view_groups(
    source: tuple[int, ...], result: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Smallest groups of consecutive dims with equal products, as (source, result) dims.

    >>> view_groups((2, 3, 8), (6, 2, 4))
    (((0, 1), (0,)), ((2,), (1, 2)))
    """
    if 0 in source or 0 in result:
        return ()
    assert math.prod(source) == math.prod(result), (source, result)
    groups = []
    i = j = 0
    while i < len(source) or j < len(result):
        start_i, start_j = i, j
        left = right = 1
        while True:
            if left <= right and i < len(source) and (left < right or i == start_i):
                left *= source[i]
                i += 1
            elif j < len(result) and (right < left or j == start_j):
                right *= result[j]
                j += 1
            else:
                break
        groups.append((tuple(range(start_i, i)), tuple(range(start_j, j))))
    return tuple(groups)
