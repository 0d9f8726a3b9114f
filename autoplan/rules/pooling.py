"""Pooling and interpolation: batch, channels, and spatial dims.

Windows that lie in one rank's rows need no message; others fetch their neighbours' rows
(`halos`). An average over a whole sharded dim gives addends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Arg, Op
from autoplan.ir.placement import Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.halos import Rows, halo_collectives, spread, window_rows
from autoplan.rules.registry import OpView, P, S, rule
from autoplan.rules.views import with_arg

__all__ = ["adaptive_pool", "interpolation", "pool"]

_SIZES = "123"


def _targets(*names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names)


def _count(op: Op) -> int:
    """Spatial dims of the operator."""
    return next(int(c) for c in op.target if c.isdigit())


def _outer(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch and channels."""
    for dim in range(len(view.shape()) - _count(op)):
        yield view.strategy({0: S(dim)}, S(dim))


def _spatial_dims(op: Op, view: OpView) -> range:
    """Spatial dims of a batched input; none of one without a batch dim."""
    ndim, count = len(view.shape()), _count(op)
    return range(2, ndim) if ndim == count + 2 else range(0)


def _settings(op: Op, view: OpView) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding and dilation, one number a spatial dim each."""
    count = _count(op)
    kernel = spread(view.integers(1, "kernel_size"), count, 1)
    stride = view.integers(2, "stride")
    dilation: tuple[int, ...] = ()
    if "max_pool" in op.target:
        dilation = view.integers(4, "dilation")
    return (
        kernel,
        spread(stride, count, 1) if stride else kernel,
        spread(view.integers(3, "padding"), count, 0),
        spread(dilation, count, 1),
    )


def _pool_rows(op: Op, view: OpView, dim: int) -> Rows | None:
    kernel, stride, padding, dilation = (setting[dim - 2] for setting in _settings(op, view))
    return window_rows(
        view.output.shape[dim],
        view.ranks,
        span=dilation * (kernel - 1) + 1,
        stride=stride,
        padding=padding,
    )


def _localize_pool(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    placement = strategy.inputs[0]
    if not strategy.call or not isinstance(placement, Shard):
        return op
    dim = placement.dim
    rows = _pool_rows(op, view, dim)
    assert rows is not None
    kernel, stride, padding, dilation = _settings(op, view)
    if "max_pool" in op.target:
        padding = tuple(0 if d == dim - 2 else p for d, p in enumerate(padding))
        rest: tuple[Arg, ...] = (dilation, view.arg(5, "ceil_mode", False))
    else:
        rest = (
            view.arg(4, "ceil_mode", False),
            view.arg(5, "count_include_pad", True),
            view.arg(6, "divisor_override"),
        )
    return replace(
        op,
        args=(op.args[0], kernel, stride, padding, *rest),
        kwargs=(("dim", dim), ("rows", (rows.step, rows.offset, rows.length))),
    )


@rule(*_targets(*(f"{kind}_pool{n}d" for n in _SIZES for kind in ("avg", "max")),
                "max_pool2d_with_indices", "max_pool3d_with_indices"),
      localizer=_localize_pool)  # fmt: skip
def pool(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch, channels, spatial dims; indices of maxima are positions in the whole tensor."""
    yield from _outer(op, view)
    average = "avg_pool" in op.target
    if average:
        yield view.strategy({0: P}, P)
    if len(view.outputs) > 1:
        return
    for dim in _spatial_dims(op, view):
        rows = _pool_rows(op, view, dim)
        if rows is None:
            continue
        inner = halo_collectives(view.inputs[0], dim, rows, view.ranks)
        if inner is None:
            continue
        call = ""
        if not rows.local(view.shape()[dim], view.ranks):
            call = "halo_avg_pool" if average else "halo_max_pool"
        yield view.strategy({0: S(dim)}, S(dim), call=call, inner=inner)


def _localize_adaptive(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    placement = strategy.inputs[0]
    spatial = len(view.shape()) - _count(op)
    if strategy.call or not isinstance(placement, Shard) or placement.dim < spatial:
        return op
    return with_arg(op, 1, "output_size", _local_size(view, placement.dim, spatial))


def _local_size(view: OpView, dim: int, spatial: int) -> Arg:
    sizes = list(view.output.shape[spatial:])
    sizes[dim - spatial] //= view.ranks
    return tuple(sizes)


@rule(*_targets(*(f"adaptive_{kind}_pool{n}d" for n in _SIZES for kind in ("avg", "max"))),
      localizer=_localize_adaptive)  # fmt: skip
def adaptive_pool(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch and channels; spatial dims of which each rank has whole windows, or only one.

    Window i of o in a dim of size n begins at i * n / o: where both divide by the ranks,
    so do the windows.
    """
    yield from _outer(op, view)
    if "avg" not in op.target:  # the indices of maxima are positions in the whole tensor
        return
    yield view.strategy({0: P}, P)
    for dim in _spatial_dims(op, view):
        if view.output.shape[dim] == 1:
            yield view.strategy({0: S(dim)}, P, call="partial_adaptive_avg_pool")
        else:
            yield view.strategy({0: S(dim)}, S(dim))


def _scales(op: Op, view: OpView) -> tuple[float | None, ...]:
    """Scale of each spatial dim where the call gives it."""
    count = _count(op)
    linear = "nearest" not in op.target
    if op.target.endswith(".vec"):
        given = view.arg(2 + linear, "scale_factors")
        items: tuple[Arg, ...] = given if isinstance(given, tuple) else (None,) * count
    else:
        names = ("scales",) if count == 1 else ("scales_d", "scales_h", "scales_w")[-count:]
        items = tuple(view.arg(2 + linear + d, name) for d, name in enumerate(names))
    return tuple(float(s) if isinstance(s, int | float) else None for s in items)


def _factor(op: Op, view: OpView, dim: int) -> tuple[int, int] | None:
    """Whole factors of enlargement and reduction of a dim, one of them 1; None: neither."""
    size, outputs = view.shape()[dim], view.output.shape[dim]
    scale = _scales(op, view)[dim - 2]
    if scale is not None and scale * size != outputs:
        return None
    if outputs % size == 0:
        return outputs // size, 1
    return (1, size // outputs) if size % outputs == 0 else None


def _linear_rows(op: Op, view: OpView, dim: int) -> tuple[Rows, int] | None:
    """Rows read by linear interpolation and the factor; one more on both sides."""
    factors = _factor(op, view, dim)
    if view.arg(2, "align_corners", False) is True or factors is None or factors[1] != 1:
        return None
    size = view.shape()[dim]
    if size % view.ranks:
        return None
    own = size // view.ranks
    return Rows(own, -1, own + 2), factors[0]


def _localize_interpolation(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    placement = strategy.inputs[0]
    spatial = len(view.shape()) - _count(op)
    if not isinstance(placement, Shard) or placement.dim < spatial:
        return op
    dim = placement.dim
    if not strategy.call:
        if view.arg(1, "output_size") is None:
            return op
        return with_arg(op, 1, "output_size", _local_size(view, dim, spatial))
    found = _linear_rows(op, view, dim)
    assert found is not None
    rows, factor = found
    size, scales = list(view.output.shape[2:]), list(_scales(op, view))
    size[dim - 2], scales[dim - 2] = rows.length * factor, None
    return replace(
        op,
        args=(op.args[0], tuple(size), tuple(scales)),
        kwargs=(
            ("dim", dim),
            ("rows", (rows.step, rows.offset, rows.length)),
            ("kept", (factor, rows.step * factor)),
        ),
    )


@rule(*_targets(*(f"{name}{n}d" for n in _SIZES
                  for name in ("upsample_nearest", "_upsample_nearest_exact")),
                "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
                "upsample_bicubic2d"),
      localizer=_localize_interpolation)  # fmt: skip
def interpolation(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Batch, channels, addends; spatial dims enlarged by a whole factor.

    The nearest row lies on the same rank; linear interpolation reads one row on each side.
    """
    yield from _outer(op, view)
    yield view.strategy({0: P}, P)
    for dim in _spatial_dims(op, view):
        if "nearest" in op.target:
            if _factor(op, view, dim) is not None:
                yield view.strategy({0: S(dim)}, S(dim))
        elif "linear" in op.target and (found := _linear_rows(op, view, dim)) is not None:
            inner = halo_collectives(view.inputs[0], dim, found[0], view.ranks)
            if inner is not None:
                yield view.strategy({0: S(dim)}, S(dim), call="halo_interpolate", inner=inner)
