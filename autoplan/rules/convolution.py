"""Convolution: batch, channels, and spatial dims with the neighbours' rows.

A shard of a spatial dim needs the rows of its neighbours that its kernel reads
(`halos`), but none where kernel and stride are equal, as in a patch embedding. The weight
is whole, its gradient partial. Where a halo would reach past the neighbours, or the output
rows do not divide, the dim is not offered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoplan.ir.graph import Op
from autoplan.ir.placement import Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.halos import Rows, halo_collectives, spread, window_rows
from autoplan.rules.registry import OpView, P, S, rule
from autoplan.rules.views import with_arg

__all__ = ["convolution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Geometry:
    """Settings of a convolution, one number a spatial dim; ``padding`` is (before, after)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    transposed: bool

    def span(self, at: int) -> int:
        """Input rows that one output row reads."""
        return self.dilation[at] * (self.kernel[at] - 1) + 1


def _geometry(op: Op, view: OpView) -> _Geometry:
    kernel = view.shape(1)[2:]
    count = len(kernel)
    groups, _, transposed = _layout(op, view)
    at = {"stride": 3, "padding": 4, "dilation": 5, "output_padding": 7}
    if op.target.startswith("aten.conv_transpose"):
        at |= {"output_padding": 5, "dilation": 7}
    stride = spread(view.integers(at["stride"], "stride"), count, 1)
    dilation = spread(view.integers(at["dilation"], "dilation"), count, 1)
    padded = view.arg(at["padding"], "padding")
    if padded == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = tuple((total // 2, total - total // 2) for total in totals)
    else:
        padding = tuple((p, p) for p in spread(view.integers(at["padding"], "padding"), count, 0))
    output_padding = (0,) * count
    if transposed:
        output_padding = spread(view.integers(at["output_padding"], "output_padding"), count, 0)
    return _Geometry(
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=output_padding,
        groups=groups,
        transposed=transposed,
    )


def _layout(op: Op, view: OpView) -> tuple[int, int, bool]:
    """Groups, the argument that holds them, and whether the convolution is transposed."""
    if op.target.startswith("aten.convolution"):
        return view.integer(8, "groups", 1), 8, view.arg(6, "transposed", False) is True
    if op.target.startswith("aten.conv_transpose"):
        return view.integer(6, "groups", 1), 6, True
    return view.integer(6, "groups", 1), 6, False


def _rows(view: OpView, geometry: _Geometry, dim: int) -> Rows | None:
    """Input rows that the ranks read for their rows of an output dim; None: not offered."""
    at, ranks = dim - 2, view.ranks
    span, stride, padding = geometry.span(at), geometry.stride[at], geometry.padding[at][0]
    if not geometry.transposed:
        # Elsewhere a rank pads as the operator does, which is the same on both sides.
        if any(a != b for d, (a, b) in enumerate(geometry.padding) if d != at):
            return None
        return window_rows(view.output.shape[dim], ranks, span=span, stride=stride, padding=padding)
    # Output row o reads the input rows from (o + p - span + 1) / s to (o + p) / s.
    size, outputs = view.shape()[dim], view.output.shape[dim]
    if size % ranks or outputs != size * stride or span < stride:
        return None
    own = size // ranks
    first = -((span - 1 - padding) // stride)
    return Rows(own, first, own + (padding - 1) // stride - first + 1)


def _localize(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    placement = strategy.inputs[0]
    if not strategy.call or not isinstance(placement, Shard):
        groups, index, _ = _layout(op, view)
        if groups == 1 or placement != S(1):
            return op
        return with_arg(op, index, "groups", groups // view.ranks)
    dim, geometry = placement.dim, _geometry(op, view)
    rows = _rows(view, geometry, dim)
    assert rows is not None
    padding = tuple(0 if d == dim - 2 else p for d, (p, _) in enumerate(geometry.padding))
    tensors = (op.args[0], op.args[1], view.arg(2, "bias"))
    more = (
        tuple(0 if d == dim - 2 else p for d, p in enumerate(geometry.output_padding)),
        geometry.groups,
    )
    own = view.output.shape[dim] // view.ranks
    kept = geometry.padding[dim - 2][0] - rows.offset * geometry.stride[dim - 2]
    return replace(
        op,
        args=(
            *tensors,
            geometry.stride,
            padding,
            geometry.dilation,
            *(more if geometry.transposed else more[1:]),
        ),
        kwargs=(
            ("dim", dim),
            ("rows", (rows.step, rows.offset, rows.length)),
            *((("kept", (kept, own)),) if geometry.transposed else ()),
        ),
    )


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution.default",
      "aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d",
      localizer=_localize)  # fmt: skip
def convolution(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch; output channels; input channels without bias; groups of channels; spatial dims."""
    if len(view.shape(0)) != len(view.shape(1)):
        return
    groups, _, transposed = _layout(op, view)
    bias = view.slot(2, "bias")
    yield view.strategy({0: S(0)}, S(0))
    outer, inner = (1, 0) if transposed else (0, 1)
    if groups == 1:
        yield view.strategy({1: S(outer), bias: S(0)}, S(1))
        if bias is None:
            yield view.strategy({0: S(1), 1: S(inner)}, P)
    elif groups % view.ranks == 0:
        yield view.strategy({0: S(1), 1: S(0), bias: S(0)}, S(1))
    yield from _spatial(op, view)


def _spatial(op: Op, view: OpView) -> Iterator[OpStrategy]:
    geometry = _geometry(op, view)
    transposed = geometry.transposed
    for dim in range(2, len(view.shape())):
        size, outputs = view.shape()[dim], view.output.shape[dim]
        rows = _rows(view, geometry, dim)
        if rows is None:
            continue
        inner = halo_collectives(view.inputs[0], dim, rows, view.ranks, rebuilt=not transposed)
        if inner is None:
            continue
        own = (size // view.ranks - 1) * geometry.stride[dim - 2] + geometry.span(dim - 2)
        if rows.local(size, view.ranks) and (not transposed or own == outputs // view.ranks):
            yield view.strategy({0: S(dim)}, S(dim))
            continue
        call = "halo_transposed_convolution" if transposed else "halo_convolution"
        yield view.strategy({0: S(dim)}, S(dim), call=call, inner=inner)
