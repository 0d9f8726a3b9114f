"""Collectives on one mesh axis that autograd can differentiate.

Each function is one edge of the placement algebra, forward and backward together:

=================  =====================================  ====================
from -> to         call                                   backward
=================  =====================================  ====================
R -> R*            ``partial_grad(x)``                    all_reduce
R -> S(d)          ``shard(x, d)``                        all_gather
S(d) -> R          ``all_gather(x, d, backward=slice)``   slice
S(d) -> R*         ``all_gather(x, d)``                   reduce_scatter
P -> R             ``all_reduce(x)``                      identity
P -> R*            ``all_reduce(x, backward=all_reduce)`` all_reduce
P -> S(d)          ``reduce_scatter(x, d)``               all_gather
S(d) -> S(e)       ``all_to_all(x, d, e)``                all_to_all
=================  =====================================  ====================

A *blocked* shard (``blocks`` = k > 1) is of a dimension made of k equal blocks: a rank holds
its slice of each block, one after another. A *padded* shard is of a dimension that does not
divide: every rank holds ceil(size / ranks) elements, and what the last one has too many is
padding, zero where these functions make it and dropped where they gather it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis
from .checkpointing import keep

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "partial_grad",
    "record_collectives",
    "reduce_in_place",
    "reduce_scatter",
    "shard",
]

# Newer torch renames both and warns about the old names.
_all_gather_flat: Callable[..., Any] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
_reduce_scatter_flat: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)

Record = tuple[str, int]
_record: list[Record] | None = None


@contextmanager
def record_collectives() -> Iterator[list[Record]]:
    """List that fills with (kind, bytes of the whole tensor) of each collective issued.

    Forward and backward calls alike; a reduction counts its whole tensor, an all_to_all what
    the ranks of the axis hold together.
    """
    global _record
    log: list[Record] = []
    previous = _record
    _record = log
    try:
        yield log
    finally:
        _record = previous


def gather_flat(output: Tensor, local: Tensor, axis: Axis) -> None:
    """Fill ``output`` with the one-dimensional tensors of the axis's ranks, in order."""
    _all_gather_flat(output, local, group=axis.group)


def _note(kind: str, size: int) -> None:
    if _record is not None:
        _record.append((kind, size))


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _dim(x: Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"dim {dim} of a tensor of shape {tuple(x.shape)}")
    return dim % x.dim()


def _check_divides(x: Tensor, dim: int, parts: int) -> None:
    if x.shape[dim] % parts:
        raise ValueError(
            f"dim {dim} of shape {tuple(x.shape)} does not divide into {parts} equal parts"
        )


def reduce_in_place(
    x: Tensor, axis: Axis, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> Tensor:
    """``x``, reduced over the axis where it lies; no step of autograd."""
    if axis.size > 1:
        _note("all_reduce", _size(x))
        dist.all_reduce(x, op=op, group=axis.group)
    return x


def _reduce(x: Tensor, axis: Axis) -> Tensor:
    return reduce_in_place(x.detach().clone(memory_format=torch.contiguous_format), axis)


def pad_dim(x: Tensor, dim: int, size: int) -> Tensor:
    """``x`` with zeros behind dim ``dim`` up to ``size``."""
    missing = size - x.shape[dim]
    if missing == 0:
        return x
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing))


def _pad_to_divide(x: Tensor, dim: int, ranks: int) -> Tensor:
    return pad_dim(x, dim, -(-x.shape[dim] // ranks) * ranks)


def _gather(x: Tensor, axis: Axis, dim: int, blocks: int, size: int | None = None) -> Tensor:
    """Whole tensor; ``size`` is that of ``dim`` where it holds padding besides."""
    _check_divides(x, dim, blocks)
    local = x.detach().contiguous()
    flat = local.view(torch.uint8) if local.dtype == torch.bool else local
    parts = flat.new_empty((axis.size, *flat.shape))
    _note("all_gather", _size(parts))
    gather_flat(parts.view(-1), flat.view(-1), axis)
    if local.dtype == torch.bool:
        parts = parts.view(torch.bool)
    shape = list(local.shape)
    chunk = shape[dim] // blocks
    # (rank, before, block, chunk, after) -> (before, block, rank, chunk, after)
    parts = parts.view(axis.size, *shape[:dim], blocks, chunk, *shape[dim + 1 :])
    shape[dim] *= axis.size
    whole = parts.movedim(0, dim + 1).reshape(shape)
    return whole if size is None else whole.narrow(dim, 0, size).contiguous()


def _slice(x: Tensor, axis: Axis, dim: int, blocks: int, pad: bool = False) -> Tensor:
    if pad:
        length = -(-x.shape[dim] // axis.size)
        first = min(axis.rank * length, x.shape[dim])
        return pad_dim(x.narrow(dim, first, min(length, x.shape[dim] - first)), dim, length)
    _check_divides(x, dim, blocks * axis.size)
    if blocks == 1:
        length = x.shape[dim] // axis.size
        return x.narrow(dim, axis.rank * length, length)
    shape = list(x.shape)
    parts = torch.unflatten(x, dim, (blocks, axis.size, -1)).select(dim + 1, axis.rank)
    shape[dim] //= axis.size
    return parts.reshape(shape)


def _scatter(x: Tensor, axis: Axis, dim: int, blocks: int, pad: bool = False) -> Tensor:
    if pad:
        x = _pad_to_divide(x, dim, axis.size)
    _check_divides(x, dim, blocks * axis.size)
    parts = (
        torch.unflatten(x.detach(), dim, (blocks, axis.size, -1)).movedim(dim + 1, 0).contiguous()
    )
    shape = list(x.shape)
    shape[dim] //= axis.size
    local = parts.new_empty(parts.shape[1:])
    _note("reduce_scatter", _size(parts))
    _reduce_scatter_flat(local.view(-1), parts.view(-1), group=axis.group)
    return local.view(shape)


def _exchange(x: Tensor, axis: Axis, from_dim: int, to_dim: int) -> Tensor:
    _check_divides(x, to_dim, axis.size)
    sent = torch.unflatten(x.detach(), to_dim, (axis.size, -1)).movedim(to_dim, 0).contiguous()
    wire = sent.view(torch.uint8) if sent.dtype == torch.bool else sent
    received = torch.empty_like(wire)
    _note("all_to_all", _size(wire) * axis.size)
    dist.all_to_all_single(received.view(-1), wire.view(-1), group=axis.group)
    shape = list(sent.shape[1:])
    shape[from_dim] *= axis.size
    return received.view(sent.dtype).movedim(0, from_dim).reshape(shape)


def _apply(function: Any, *args: object) -> Tensor:
    result: Tensor = function.apply(*args)
    return result


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, reduce_grad: bool) -> Tensor:
        ctx.axis, ctx.reduce_grad = axis, reduce_grad
        return keep(lambda: [_reduce(x, axis)])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return (_reduce(grad, ctx.axis) if ctx.reduce_grad else grad), None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, axis: Axis, dim: int, blocks: int, partial: bool, size: int | None
    ) -> Tensor:
        ctx.axis, ctx.dim, ctx.blocks, ctx.partial = axis, dim, blocks, partial
        ctx.pad = size is not None
        return keep(lambda: [_gather(x, axis, dim, blocks, size)])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        back = _scatter if ctx.partial else _slice
        local = back(grad, ctx.axis, ctx.dim, ctx.blocks, ctx.pad)
        return local, None, None, None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int, blocks: int, pad: bool) -> Tensor:
        ctx.axis, ctx.dim, ctx.blocks = axis, dim, blocks
        ctx.size = x.shape[dim] if pad else None
        return keep(lambda: [_scatter(x, axis, dim, blocks, pad)])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gather(grad, ctx.axis, ctx.dim, ctx.blocks, ctx.size), None, None, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, from_dim: int, to_dim: int) -> Tensor:
        ctx.axis, ctx.from_dim, ctx.to_dim = axis, from_dim, to_dim
        return keep(lambda: [_exchange(x, axis, from_dim, to_dim)])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _exchange(grad, ctx.axis, ctx.to_dim, ctx.from_dim), None, None, None


class _PartialGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduce(grad, ctx.axis), None


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int, blocks: int, pad: bool) -> Tensor:
        ctx.axis, ctx.dim, ctx.blocks = axis, dim, blocks
        ctx.size = x.shape[dim] if pad else None
        # A view of an input returned from a Function may not be modified in place later.
        return _slice(x, axis, dim, blocks, pad).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gather(grad, ctx.axis, ctx.dim, ctx.blocks, ctx.size), None, None, None, None


def all_gather(
    x: Tensor,
    axis: Axis,
    dim: int,
    blocks: int = 1,
    backward: Literal["reduce_scatter", "slice"] = "reduce_scatter",
    size: int | None = None,
) -> Tensor:
    """Whole tensor of which each rank holds its shard of ``dim``.

    ``backward`` says what arrives there: ``reduce_scatter`` for a partial gradient (R*),
    ``slice`` for a whole one (R). ``size`` is that of ``dim`` without the padding of a padded
    shard.
    """
    if backward not in ("reduce_scatter", "slice"):
        raise ValueError(f"backward of all_gather is reduce_scatter or slice, not {backward!r}")
    dim = _dim(x, dim)
    if axis.size == 1:
        return x
    if size is not None and (blocks > 1 or -(-size // axis.size) != x.shape[dim]):
        raise ValueError(
            f"a padded shard of {size} on {axis.size} ranks can't have {x.shape[dim]} elements "
            f"in {blocks} blocks"
        )
    return _apply(_AllGather, x, axis, dim, blocks, backward == "reduce_scatter", size)


def all_reduce(
    x: Tensor, axis: Axis, backward: Literal["identity", "all_reduce"] = "identity"
) -> Tensor:
    """Sum of the ranks' addends, on every rank.

    ``backward`` is ``identity`` when the gradient that arrives is whole (R), ``all_reduce``
    when it is partial (R*).
    """
    if backward not in ("identity", "all_reduce"):
        raise ValueError(f"backward of all_reduce is identity or all_reduce, not {backward!r}")
    if axis.size == 1:
        return x
    return _apply(_AllReduce, x, axis, backward == "all_reduce")


def reduce_scatter(x: Tensor, axis: Axis, dim: int, blocks: int = 1, pad: bool = False) -> Tensor:
    """Shard of ``dim`` of the sum of the ranks' addends; ``pad`` makes it a padded one."""
    dim = _dim(x, dim)
    if axis.size == 1:
        return x
    return _apply(_ReduceScatter, x, axis, dim, blocks, pad)


def all_to_all(x: Tensor, axis: Axis, from_dim: int, to_dim: int) -> Tensor:
    """Shard of ``to_dim`` of the tensor that was sharded on ``from_dim``."""
    from_dim, to_dim = _dim(x, from_dim), _dim(x, to_dim)
    if from_dim == to_dim:
        raise ValueError(f"all_to_all from dim {from_dim} to itself")
    if axis.size == 1:
        return x
    return _apply(_AllToAll, x, axis, from_dim, to_dim)


def partial_grad(x: Tensor, axis: Axis) -> Tensor:
    """The tensor itself; its gradient, partial on each rank, is summed over the axis."""
    if axis.size == 1:
        return x
    return _apply(_PartialGrad, x, axis)


def shard(x: Tensor, axis: Axis, dim: int, blocks: int = 1, pad: bool = False) -> Tensor:
    """Shard of ``dim`` of a tensor that every rank has whole; ``pad`` makes it a padded one."""
    dim = _dim(x, dim)
    if axis.size == 1:
        return x
    return _apply(_Shard, x, axis, dim, blocks, pad)
