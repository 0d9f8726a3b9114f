"""Sample calls of operators along spatial dims and of normalisations over shared statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .engine import Sample, T

__all__ = ["spatial_samples"]


def _t(*shape: int, grad: bool = True, low: float = -1.0) -> T:
    return T(shape=shape, low=low, grad=grad)


def _call(target: str, *args: Any) -> Sample:
    return Sample(target=f"aten.{target}", args=args)


def spatial_samples(b: int, rows: int) -> Iterator[Sample]:
    """Samples with batches of ``b`` and ``4 * rows`` rows, of which 2, 3 and 4 ranks have some."""
    size = 4 * rows
    yield from _convolutions(b, size)
    yield from _transposed(b, size)
    yield from _pools(b, size)
    yield from _interpolations(b, size)
    yield from _norms(b, size)
    x = _t(b, 3, size)
    yield _call("broadcast_tensors.default", (x, _t(b, 3, size, grad=False)))
    yield _call("broadcast_tensors.default", (x, _t(3, 1)))


def _convolutions(b: int, size: int) -> Iterator[Sample]:
    #           kernel, stride, padding, dilation, groups
    settings = (
        (3, 1, 1, 1, 1),
        (3, 2, 1, 1, 1),
        (7, 2, 3, 1, 1),
        (7, 1, 3, 1, 4),
        (3, 1, 2, 2, 2),
        (4, 4, 0, 1, 1),
        (1, 2, 0, 1, 1),
        (3, 1, 0, 1, 1),
        (4, 1, 1, 1, 1),
        (2, 3, 1, 1, 1),
    )
    for n in (1, 2, 3):
        x = _t(b, 4, size, *(6,) * (n - 1))
        for kernel, stride, padding, dilation, groups in settings if n < 3 else settings[:3]:
            if n > 1 and kernel == 7 and groups == 1:
                x = _t(b, 4, size, *(7,) * (n - 1), grad=False)  # as of a batch
            inner = ((kernel, stride, padding, dilation), (3, 1, 1, 1))
            k, s, p, d = ((own, *(other,) * (n - 1)) for own, other in zip(*inner, strict=True))
            weight = _t(4, 4 // groups, *k)
            yield _call(f"conv{n}d.default", x, weight, _t(4), s, p, d, groups)
        for edge in ("same", "valid"):
            yield _call(f"conv{n}d.padding", x, _t(4, 4, *(3,) * n), None, (1,) * n, edge)
        yield _call(f"conv{n}d.padding", x, _t(4, 4, *(2,) * n), None, (1,) * n, "same")
    rest = ((1, 1), False, (0, 0))
    yield _call("convolution.default", _t(b, 4, size, 5), _t(2, 4, 3, 3), None, (2, 1), (1, 1),
                *rest, 1)  # fmt: skip


def _transposed(b: int, size: int) -> Iterator[Sample]:
    #           kernel, stride, padding, output padding, dilation
    settings = ((2, 2, 0, 0, 1), (4, 2, 1, 0, 1), (3, 2, 1, 1, 1), (3, 1, 1, 0, 1), (3, 2, 2, 1, 2),
                (2, 3, 0, 1, 1), (3, 3, 0, 0, 1))  # fmt: skip
    for n in (1, 2, 3):
        name = f"conv_transpose{n}d." + ("default" if n == 1 else "input")
        x = _t(b, 4, size // 2, *(3,) * (n - 1))
        for kernel, stride, padding, more, dilation in settings if n < 3 else settings[:2]:
            args = ((stride,) * n, (padding,) * n, (more,) * n)
            weight = _t(4, 2, *(kernel,) * n)
            yield _call(name, x, weight, _t(4), *args, 2, (dilation,) * n)
    yield _call(
        "convolution.default", _t(b, 4, size, 3), _t(4, 2, 3, 3), _t(2), (2, 1), (1, 1), (1, 1),
        True, (1, 0), 1,
    )  # fmt: skip


def _pools(b: int, size: int) -> Iterator[Sample]:
    for n in (1, 2, 3):
        x = _t(b, 2, size, *(6,) * (n - 1))
        for kernel, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 1)):
            common = ((kernel,) * n, (stride,) * n, (padding,) * n)
            for ceil_mode in (False, True):
                yield _call(f"max_pool{n}d.default", x, *common, (1,) * n, ceil_mode)
                for include in (False, True):
                    yield _call(f"avg_pool{n}d.default", x, *common, ceil_mode, include)
        yield _call(f"max_pool{n}d.default", x, (3,) * n, (1,) * n, (1,) * n, (2,) * n)
        if n > 1:
            yield _call(f"avg_pool{n}d.default", x, (3,) * n, (1,) * n, (1,) * n, False, True, 5)
        for output in (1, 4, size // 2):
            yield _call(f"adaptive_avg_pool{n}d.default", x, (output, *(2,) * (n - 1)))
        yield _call(f"adaptive_avg_pool{n}d.default", x, (1,) * n)


def _interpolations(b: int, size: int) -> Iterator[Sample]:
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}
    for n in (1, 2, 3):
        x = _t(b, 2, size, *(3,) * (n - 1))
        others = (6,) * (n - 1)
        for name in ("upsample_nearest", "_upsample_nearest_exact"):
            yield _call(f"{name}{n}d.default", x, (2 * size, *others))
            yield _call(f"{name}{n}d.default", x, (size // 2, *others))
            yield _call(f"{name}{n}d.default", x, (size + 1, *others))
            yield _call(f"{name}{n}d.vec", x, None, (2.0,) * n)
            yield _call(f"{name}{n}d.vec", x, (3 * size, *others), None)
        name = f"upsample_{linear[n]}{n}d"
        for align in (False, True):
            yield _call(f"{name}.default", x, (2 * size, *others), align)
            yield _call(f"{name}.vec", x, None, align, (2.0,) * n)
        yield _call(f"{name}.default", x, (size // 2, *others), False)
    yield _call("upsample_bicubic2d.vec", _t(b, 2, size, 3), None, False, (2.0, 2.0))


def _norms(b: int, size: int) -> Iterator[Sample]:
    weight, bias = _t(4), _t(4)
    mean, var = _t(4, grad=False), _t(4, grad=False, low=0.5)
    for shape in ((2 * b, 4, size), (b, 4, size, 2), (b, 4, 2, size, 2)):
        x = _t(*shape)
        for running in ((None, None), (mean, var)):
            yield _call("batch_norm.default", x, weight, bias, *running, True, 0.1, 1e-5, False)
        yield _call("batch_norm.default", x, None, None, mean, var, True, 0.1, 1e-5, False)
        for groups in (1, 2, 4):
            yield _call("group_norm.default", x, groups, weight, bias, 1e-5, False)
        yield _call("group_norm.default", x, 2)
        for affine in ((weight, bias), (None, None)):
            yield _call("instance_norm.default", x, *affine, None, None, True, 0.1, 1e-5, False)
    x = _t(b, 3, size)
    yield _call("layer_norm.default", x, (size,), _t(size), _t(size))
    yield _call("layer_norm.default", x, (3, size), _t(3, size), _t(3, size))
    yield _call("layer_norm.default", x, (size,))
    yield _call("rms_norm.default", x, (size,), _t(size))
    yield _call("rms_norm.default", x, (size,), None, 1e-6)
    for name in ("softmax.int", "log_softmax.int"):
        for dim in (1, -1):
            yield _call(name, _t(b, size, 3), dim)
