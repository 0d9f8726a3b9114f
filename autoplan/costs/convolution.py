"""Bytes that a CPU's convolution holds for a moment beside what it reads and writes.

torch hands a convolution to oneDNN, which computes in layouts of its own (ATen's
``mkldnn/Conv.cpp``): input, weight and result exist once more in *blocks* of as many channels as
a vector register has lanes, the last block filled up, and the result is then copied to torch's
layout. Of one or three input channels it reads torch's layout itself. Where it steps (the
backward of a strided convolution, the forward of a strided transposed one) its result has
channels last, which takes two copies to torch's layout. In backward the gradient of the input
is made before that of the weight, each with its own copies.

What oneDNN is not used for unfolds each window into a column of a matrix, but for 1 x 1
kernels, which need none: types it has no kernels for, and by ``Convolution.cpp`` some that are
small. Buffers by which oneDNN's threads sum are not counted, nor those of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.ir.graph import Arg, BlockClass, Op, Tensor, aten_name, dtype_size
from autoplan.ir.hardware import HostConvolutions
from autoplan.ir.placement import Placement, Shard, shard_shape
from autoplan.ir.strategy import OpStrategy

__all__ = ["convolution_copies", "is_convolution"]

_NAMES = ("convolution", *(f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)))
_READ_AS_THEY_ARE = (1, 3)  # channels
_FEW = 20480  # elements of a sample that is not worth oneDNN's copies
_MANY = 16  # samples for which 1 x 1 kernels are worth them on one thread
_WIDE_VECTORS = 16  # lanes that come with oneDNN's kernels of 16 bits
_HALVES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Local shapes and bytes of an element; ``space`` is the number of spatial dims."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    itemsize: int
    transposed: bool
    strided: bool
    dilated: bool
    groups: int

    @property
    def space(self) -> int:
        return len(self.weight) - 2

    @property
    def samples(self) -> int:
        return self.x[0] if len(self.x) == len(self.weight) else 1

    @property
    def plane(self) -> tuple[int, ...]:
        """Extent of the kernel in the last two dims; of one dim, torch makes two."""
        return (1, 1, *self.weight[2:])[-2:]

    def bytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.itemsize

    def blocked(self, shape: tuple[int, ...], lanes: int) -> int:
        """Bytes of a tensor whose channels are filled up to whole vectors."""
        at = len(shape) - self.space - 1
        return self.bytes((*shape[:at], _whole(shape[at], lanes), *shape[at + 1 :]))

    def blocked_weight(self, lanes: int, *, inputs_too: bool) -> int:
        outer, inner, *kernel = self.weight
        if self.groups > 1:
            return self.bytes((_whole(outer, lanes), inner, *kernel))
        if inputs_too:
            inner = _whole(inner, lanes)
        return self.bytes((_whole(outer, lanes), inner, *kernel))


def is_convolution(op: Op) -> bool:
    """Whether it is one of torch's convolutions, transposed ones included."""
    return aten_name(op.target) in _NAMES


def convolution_copies(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    ranks: int,
    host: HostConvolutions,
    *,
    window: int = 0,
) -> tuple[int, int]:
    """Bytes in forward besides operands and result; in backward, besides all gradients.

    ``window`` is bytes of the rows that are convolved, where they are not the local input.
    """
    sizes = _sizes(op, block, strategy, ranks, window)
    x, weight = (block.tensor(name) for name in op.inputs[:2])
    if not _is_blocked(sizes, x.dtype, host):
        columns = 0 if sizes.transposed or _is_point(sizes) else _columns(sizes)
        return columns, columns
    return _forward(sizes, host.lanes), _backward(sizes, host.lanes, x, weight)


def _forward(sizes: _Sizes, lanes: int) -> int:
    y = sizes.bytes(sizes.y)
    if sizes.transposed and sizes.strided:
        return max(sizes.bytes(sizes.x) + sizes.bytes(sizes.weight), 2 * y)
    copies = sum(_operands(sizes, lanes)) + sizes.blocked(sizes.y, lanes) - y
    return max(copies, sizes.blocked(sizes.y, lanes))


def _backward(sizes: _Sizes, lanes: int, x: Tensor, weight: Tensor) -> int:
    of_x, of_weight = sizes.bytes(sizes.x), sizes.bytes(sizes.weight)
    grad = sizes.blocked(sizes.y, lanes)
    peak = held = 0
    if x.requires_grad:
        held += of_x
        blocked = sizes.blocked(sizes.x, lanes)
        laid_out = blocked + of_x
        if sizes.strided and not sizes.transposed:
            grad, blocked, laid_out = sizes.bytes(sizes.y), of_x, 3 * of_x
        filled = sizes.blocked_weight(lanes, inputs_too=True)
        peak = max(grad + filled + blocked, laid_out)
    if weight.requires_grad:
        read, filled = _operands(sizes, lanes)
        grad = sizes.blocked(sizes.y, lanes)
        peak = max(peak, held + max(grad + read + filled, filled + of_weight))
        held += of_weight
    return max(0, peak - held)


def _operands(sizes: _Sizes, lanes: int) -> tuple[int, int]:
    """Bytes of the copies of input and weight that forward and the weight's gradient use."""
    channels = sizes.x[len(sizes.x) - sizes.space - 1]
    if channels in _READ_AS_THEY_ARE and not sizes.transposed and sizes.groups == 1:
        return 0, sizes.blocked_weight(lanes, inputs_too=False)
    return sizes.blocked(sizes.x, lanes), sizes.blocked_weight(lanes, inputs_too=True)


def _is_blocked(sizes: _Sizes, dtype: str, host: HostConvolutions) -> bool:
    """Whether torch hands the convolution to oneDNN: ``ConvParams::use_mkldnn``."""
    if dtype in _HALVES:
        return host.lanes >= _WIDE_VECTORS
    if dtype != "float32":
        return False
    steps = sizes.strided or sizes.dilated
    if _is_point(sizes) and not (steps or sizes.samples >= _MANY or host.threads > 1):
        return False
    large = min(sizes.plane) > 3
    return sizes.groups > 1 or large or sizes.samples > 1 or math.prod(sizes.x[:4]) > _FEW


def _is_point(sizes: _Sizes) -> bool:
    return sizes.plane == (1, 1)


def _columns(sizes: _Sizes) -> int:
    inputs, kernel = sizes.weight[1], sizes.weight[2:]
    places = sizes.y[len(sizes.y) - sizes.space :]
    return sizes.samples * inputs * math.prod(kernel) * math.prod(places) * sizes.itemsize


def _sizes(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int, window: int) -> _Sizes:
    x, weight = (
        _local(block.tensor(name), placement, ranks)
        for name, placement in zip(op.inputs[:2], strategy.inputs[:2], strict=True)
    )
    y = _local(block.tensor(op.outputs[0]), strategy.outputs[0], ranks)
    itemsize = dtype_size(block.tensor(op.inputs[0]).dtype)
    split = strategy.inputs[0]
    if window and isinstance(split, Shard):
        rows = window * x[split.dim] // (math.prod(x) * itemsize)
        x = (*x[: split.dim], rows, *x[split.dim + 1 :])
    name = aten_name(op.target)
    transposed = name.startswith("conv_transpose") or (
        name == "convolution" and _argument(op, 6, "transposed") is True
    )
    dilation = 7 if name.startswith("conv_transpose") else 5
    groups = _argument(op, 8 if name == "convolution" else 6, "groups")
    return _Sizes(
        x=x,
        weight=weight,
        y=y,
        itemsize=itemsize,
        transposed=transposed,
        strided=_exceeds_one(_argument(op, 3, "stride")),
        dilated=_exceeds_one(_argument(op, dilation, "dilation")),
        groups=groups if isinstance(groups, int) else 1,
    )


def _local(tensor: Tensor, placement: Placement, ranks: int) -> tuple[int, ...]:
    return shard_shape(tensor.shape, placement, ranks)


def _argument(op: Op, index: int, name: str) -> Arg:
    return op.args[index] if index < len(op.args) else dict(op.kwargs).get(name)


def _exceeds_one(value: Arg) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(one, int) and one > 1 for one in values)


def _whole(channels: int, lanes: int) -> int:
    return -(-channels // lanes) * lanes
