"""Operators along a spatial dimension of which each rank holds an equal run of rows.

An output row reads a window of input rows. The rows that a rank's outputs read and that lie
on other ranks are its *halo*: fetched before the operator, their gradients sent back and
added after it. ``rows = (step, offset, length)`` says which: rank r reads the rows from
``r * step + offset`` on, ``length`` of them; those outside the tensor are padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis
from .checkpointing import keep
from .collectives import _apply, _note

__all__ = [
    "halo_avg_pool",
    "halo_convolution",
    "halo_interpolate",
    "halo_max_pool",
    "halo_transposed_convolution",
    "partial_adaptive_avg_pool",
]

aten = torch.ops.aten
Fill = Literal["zero", "lowest", "edge"]


class _Halo:
    """Which rows of one dimension each rank fetches from which, and the exchange."""

    def __init__(self, x: Tensor, axis: Axis, dim: int, rows: Sequence[int]) -> None:
        self.axis, self.dim = axis, dim
        self.step, self.offset, self.length = rows
        self.local = x.shape[dim]
        self.shape = x.shape
        first, last = self.read(axis.rank)
        self.before = first - (axis.rank * self.step + self.offset)
        self.after = self.length - self.before - (last - first)
        self.own = self.overlap(axis.rank, axis.rank)

    def read(self, rank: int) -> tuple[int, int]:
        """Rows of the tensor that a rank reads: first, and one past the last."""
        first = rank * self.step + self.offset
        whole = self.local * self.axis.size
        return min(max(first, 0), whole), min(max(first + self.length, 0), whole)

    def overlap(self, reader: int, owner: int) -> tuple[int, int]:
        """Rows that a reader needs of an owner's: first within the owner's, and how many."""
        first, last = self.read(reader)
        first, last = first - owner * self.local, last - owner * self.local
        first, last = max(first, 0), min(last, self.local)
        return (first, last - first) if first < last else (0, 0)

    def fetched(self, reader: int) -> int:
        """Rows that a reader fetches."""
        ranks = range(self.axis.size)
        return sum(self.overlap(reader, owner)[1] for owner in ranks if owner != reader)

    def given(self, owner: int) -> int:
        """Rows that an owner gives away."""
        ranks = range(self.axis.size)
        return sum(self.overlap(reader, owner)[1] for reader in ranks if reader != owner)

    def _piece(self, count: int) -> tuple[int, ...]:
        return (*self.shape[: self.dim], count, *self.shape[self.dim + 1 :])

    def _swap(self, sent: list[Tensor], counts: list[int], busiest: int) -> list[Tensor]:
        """Pieces that the ranks sent here; ``counts`` are rows expected from each."""
        sizes = [math.prod(self._piece(count)) for count in counts]
        wire = torch.cat([piece.reshape(-1) for piece in sent])
        received = wire.new_empty(sum(sizes))
        row = math.prod(self._piece(1)) * wire.element_size()
        _note("p2p", busiest * row)
        dist.all_to_all_single(
            received,
            wire,
            output_split_sizes=sizes,
            input_split_sizes=[piece.numel() for piece in sent],
            group=self.axis.group,
        )
        parts = torch.split(received, sizes)
        return [part.view(self._piece(count)) for part, count in zip(parts, counts, strict=True)]

    def fetch(self, x: Tensor) -> list[Tensor]:
        """Rows of each rank that this one reads; none of its own."""
        me, ranks = self.axis.rank, range(self.axis.size)
        spans = [self.overlap(rank, me) if rank != me else (0, 0) for rank in ranks]
        sent = [x.narrow(self.dim, first, count) for first, count in spans]
        counts = [self.overlap(me, rank)[1] if rank != me else 0 for rank in ranks]
        return self._swap(sent, counts, max(map(self.given, ranks)))

    def window(self, x: Tensor, fetched: list[Tensor], *, padded: bool) -> Tensor:
        """All rows this rank reads, in order; ``padded``: with zeros outside the tensor."""
        pieces = list(fetched)
        pieces[self.axis.rank] = x.narrow(self.dim, *self.own)
        if padded:
            zeros = [x.new_zeros(self._piece(count)) for count in (self.before, self.after)]
            pieces = [zeros[0], *pieces, zeros[1]]
        return torch.cat(pieces, self.dim)

    def give_back(self, grad: Tensor, *, padded: bool) -> Tensor:
        """Gradient of the local rows from that of the window."""
        me, ranks = self.axis.rank, range(self.axis.size)
        counts = [self.overlap(me, rank)[1] for rank in ranks]
        if padded:
            grad = grad.narrow(self.dim, self.before, sum(counts))
        pieces = list(torch.split(grad, counts, self.dim))
        own, pieces[me] = pieces[me], grad.narrow(self.dim, 0, 0)
        spans = [self.overlap(rank, me) if rank != me else (0, 0) for rank in ranks]
        back = self._swap(pieces, [count for _, count in spans], max(map(self.fetched, ranks)))
        result = grad.new_zeros(self.shape)
        result.narrow(self.dim, *self.own).copy_(own)
        for (first, count), piece in zip(spans, back, strict=True):
            if count:
                result.narrow(self.dim, first, count).add_(piece)
        return result


class _Window(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, axis: Axis, dim: int, rows: Sequence[int], kept: bool
    ) -> Tensor:
        ctx.halo = halo = _Halo(x, axis, dim, rows)
        fetched = keep(lambda: halo.fetch(x)) if kept else halo.fetch(x)
        return halo.window(x, list(fetched), padded=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.halo.give_back(grad, padded=False), None, None, None, None


def _window(
    x: Tensor, axis: Axis, dim: int, rows: Sequence[int], fill: Fill, *, kept: bool = False
) -> Tensor:
    """Rows this rank reads, those outside the tensor filled; differentiable.

    ``kept``: selective recompute keeps the rows of other ranks.
    """
    halo = _Halo(x, axis, dim, rows)
    if _exchanges(halo):
        inside = _apply(_Window, x, axis, dim, rows, kept)
    else:
        inside = x.narrow(dim, *halo.own)
    if not halo.before and not halo.after:
        return inside
    if fill == "edge":
        ends = inside[(slice(None),) * dim + (slice(0, 1),)], inside.narrow(dim, -1, 1)
        first, last = (
            end.expand([n if d == dim else -1 for d in range(x.dim())])
            for end, n in zip(ends, (halo.before, halo.after), strict=True)
        )
        return torch.cat([first, inside, last], dim)
    amounts = [0, 0] * (x.dim() - 1 - dim) + [halo.before, halo.after]
    return F.pad(inside, amounts, value=0.0 if fill == "zero" else -math.inf)


def _exchanges(halo: _Halo) -> bool:
    return any(halo.fetched(rank) for rank in range(halo.axis.size))


class _Convolution(torch.autograd.Function):
    """Convolution of the window; only the halo is kept for backward, not the window."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        settings: tuple[list[int], list[int], list[int], int],
        axis: Axis,
        dim: int,
        rows: Sequence[int],
    ) -> Tensor:
        ctx.halo = halo = _Halo(x, axis, dim, rows)
        ctx.settings = settings
        ctx.bias_size = None if bias is None else list(bias.shape)
        fetched = [x.narrow(dim, 0, 0)] * axis.size
        if _exchanges(halo):
            fetched = list(keep(lambda: halo.fetch(x)))
        ctx.save_for_backward(x, weight, *fetched)
        stride, padding, dilation, groups = settings
        none = [0] * len(stride)
        window = halo.window(x, fetched, padded=True)
        result: Tensor = aten.convolution(
            window, weight, bias, stride, padding, dilation, False, none, groups
        )
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *fetched = ctx.saved_tensors
        halo: _Halo = ctx.halo
        stride, padding, dilation, groups = ctx.settings
        window = halo.window(x, list(fetched), padded=True)
        wanted = list(ctx.needs_input_grad[:3])
        wanted[2] &= ctx.bias_size is not None
        of_window, of_weight, of_bias = aten.convolution_backward(
            grad, window, weight, ctx.bias_size, stride, padding, dilation, False,
            [0] * len(stride), groups, wanted,
        )  # fmt: skip
        del window
        of_x = None
        if wanted[0] and _exchanges(halo):
            of_x = halo.give_back(of_window, padded=True)
        elif wanted[0]:
            of_x = grad.new_zeros(halo.shape)
            own = of_window.narrow(halo.dim, halo.before, halo.own[1])
            of_x.narrow(halo.dim, *halo.own).copy_(own)
        return of_x, of_weight, of_bias, None, None, None, None


def halo_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    *,
    dim: int,
    rows: Sequence[int],
    axis: Axis,
) -> Tensor:
    """Convolution of which this rank computes its rows of ``dim``; ``padding`` is 0 there."""
    return _apply(
        _Convolution, x, weight, bias, (stride, padding, dilation, groups), axis, dim, rows
    )


def halo_transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
    *,
    dim: int,
    rows: Sequence[int],
    kept: Sequence[int],
    axis: Axis,
) -> Tensor:
    """Transposed convolution of the window; ``kept`` are first row and count of its rows."""
    window = _window(x, axis, dim, rows, "zero", kept=True)
    result: Tensor = aten.convolution(
        window, weight, bias, stride, padding, dilation, True, output_padding, groups
    )
    return result.narrow(dim, kept[0], kept[1])


def _named(name: str, x: Tensor) -> Callable[..., Tensor]:
    packet = getattr(aten, f"{name}{x.dim() - 2}d")
    found: Callable[..., Tensor] = packet.default
    return found


def halo_max_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    *,
    dim: int,
    rows: Sequence[int],
    axis: Axis,
) -> Tensor:
    """Maximum pooling of which this rank computes its rows of ``dim``."""
    window = _window(x, axis, dim, rows, "lowest")
    return _named("max_pool", x)(window, kernel, stride, padding, dilation, ceil_mode)


def halo_avg_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    *,
    dim: int,
    rows: Sequence[int],
    axis: Axis,
) -> Tensor:
    """Average pooling of which this rank computes its rows of ``dim``.

    The window's sums are divided by the number of rows each covers in the whole tensor.
    """
    window = _window(x, axis, dim, rows, "zero")
    inner = [0 if d == dim - 2 else p for d, p in enumerate(padding)]
    # One dimension has no divisor of its own: pool it as two.
    flat = x.dim() == 3
    if flat:
        window = window.unsqueeze(-2)
        args = [[1, *kernel], [1, *stride], [0, *inner]]
    else:
        args = [kernel, stride, inner]
    sums: Tensor = _named("avg_pool", window)(window, *args, ceil_mode, True, 1)
    sums = sums.squeeze(-2) if flat else sums
    if divisor is not None:
        return sums / divisor
    counts = sums.new_ones(())
    for d in range(len(kernel)):
        here = dim - 2 == d
        size = x.shape[d + 2] * (axis.size if here else 1)
        first = axis.rank * rows[0] if here else 0
        starts = first - padding[d] + stride[d] * torch.arange(sums.shape[d + 2], device=x.device)
        ends = (starts + kernel[d]).clamp(max=size + padding[d])
        if not count_include_pad:
            starts, ends = starts.clamp(min=0), ends.clamp(max=size)
        shape = [-1 if e == d else 1 for e in range(len(kernel))]
        counts = counts * (ends - starts).view(shape)
    return sums / counts.to(sums.dtype)


def halo_interpolate(
    x: Tensor,
    size: list[int],
    scales: list[float | None],
    *,
    dim: int,
    rows: Sequence[int],
    kept: Sequence[int],
    axis: Axis,
) -> Tensor:
    """Linear interpolation of the window; ``kept`` are first row and count of its rows."""
    window = _window(x, axis, dim, rows, "edge")
    name = ("linear1d", "bilinear2d", "trilinear3d")[x.dim() - 3]
    result: Tensor = getattr(aten, f"upsample_{name}").default(window, size, False, *scales)
    return result.narrow(dim, kept[0], kept[1])


def partial_adaptive_avg_pool(x: Tensor, output_size: list[int], *, axis: Axis) -> Tensor:
    """Addend of an average over a whole dimension of which this rank has its rows."""
    return _named("adaptive_avg_pool", x)(x, output_size) / axis.size
