"""Seconds of one operator on one rank: a roofline with efficiency curves.

``time = max(flop / (peak * eff(flop)), bytes / (bandwidth * eff(bytes))) + kernel latency``

``flop`` is the operator's own, divided by the ranks when its strategy shards some input or
output: every local shape of such an operator is 1/ranks of the whole in one dimension of the
work. Fused attention skips the half that a causal mask hides, though ``Op.flop`` counts it.
``bytes`` are what the kernel reads and writes, what it keeps for backward included. Views
run no kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.errors import InputError
from autoplan.ir.graph import BlockClass, Op, Tensor, TensorKind, dtype_size
from autoplan.ir.hardware import Accelerator
from autoplan.ir.placement import Placement, Shard, shard_shape
from autoplan.ir.strategy import OpStrategy

__all__ = [
    "OpTime",
    "is_sharded",
    "is_view",
    "local_bytes",
    "matmul_rate",
    "memory_time",
    "op_time",
]

_ATTENTION = "scaled_dot_product"
# Kernels that read only the rows or elements they return.
_GATHERS = ("aten.embedding.", "aten.index_select.", "aten.index.", "aten.gather.")
_EMULATED = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """Seconds of local compute of one operator."""

    forward: float
    backward: float


def local_bytes(tensor: Tensor, placement: Placement, ranks: int) -> int:
    """Bytes of a tensor that one rank holds."""
    if not isinstance(placement, Shard):
        return tensor.size
    return math.prod(shard_shape(tensor.shape, placement, ranks)) * dtype_size(tensor.dtype)


def is_sharded(strategy: OpStrategy) -> bool:
    """Whether the ranks divide the operator's work: some input or output is a shard."""
    return any(isinstance(p, Shard) for p in (*strategy.inputs, *strategy.outputs))


def is_view(op: Op, block: BlockClass) -> bool:
    """Whether the operator only makes views of its input."""
    return all(block.tensor(name).base != name for name in op.outputs)


def matmul_rate(accelerator: Accelerator, dtype: str) -> float:
    """Peak matmul FLOP/s in ``dtype``.

    A 16-bit type that the device has no units for runs at its float32 rate, which is how
    libraries emulate it. For float32 the catalogue holds the rate without TF32, torch's
    default. Other types without a rate are an `InputError`.
    """
    rates = dict(accelerator.matmul_peak)
    if dtype in rates:
        return rates[dtype]
    if dtype in _EMULATED and "float32" in rates:
        return rates["float32"]
    raise InputError(
        f"{accelerator.name} has no matmul rate for {dtype}",
        hint=f"train in one of {', '.join(rates)}",
    )


def memory_time(size: float, accelerator: Accelerator) -> float:
    """Seconds to move ``size`` bytes to or from the rank's memory, without latency."""
    if size <= 0:
        return 0.0
    return size / (accelerator.memory_bandwidth * accelerator.memory_efficiency(size))


def op_time(
    op: Op, block: BlockClass, strategy: OpStrategy, ranks: int, accelerator: Accelerator
) -> OpTime:
    """Seconds of local compute, forward and backward."""
    inputs = [block.tensor(name) for name in op.inputs]
    outputs = [block.tensor(name) for name in op.outputs]
    input_bytes = [
        local_bytes(tensor, placement, ranks)
        for tensor, placement in zip(inputs, strategy.inputs, strict=True)
    ]
    output_bytes = [
        local_bytes(tensor, placement, ranks)
        for tensor, placement in zip(outputs, strategy.outputs, strict=True)
    ]
    work = _Work(op, _main_dtype(inputs, outputs), ranks if is_sharded(strategy) else 1)
    forward = 0.0
    if not is_view(op, block):
        moved = sum(output_bytes) + work.extra
        if op.target.startswith(_GATHERS):
            moved += sum(output_bytes) + sum(input_bytes[1:])
        else:
            moved += _distinct(inputs, input_bytes)
        forward = _time(work, op.flop, moved, 1, accelerator)
    backward = _backward(op, block, strategy, ranks, input_bytes, output_bytes, work, accelerator)
    return OpTime(forward=forward, backward=backward)


@dataclass(frozen=True, slots=True)
class _Work:
    op: Op
    dtype: str
    share: int

    @property
    def extra(self) -> int:
        """Bytes written forward and read backward that are no tensor of the graph."""
        return self.op.saved_extra // self.share

    def flop(self, whole: int) -> float:
        """FLOP this rank carries out."""
        return whole / self.share / (2 if _is_causal(self.op) else 1)


def _backward(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    ranks: int,
    input_bytes: list[int],
    output_bytes: list[int],
    work: _Work,
    accelerator: Accelerator,
) -> float:
    outputs = [block.tensor(name) for name in op.outputs]
    wanted = {
        name: size
        for name, size in zip(op.inputs, input_bytes, strict=True)
        if block.tensor(name).requires_grad
    }
    if not wanted or not any(tensor.requires_grad for tensor in outputs):
        return 0.0
    received = sum(size for t, size in zip(outputs, output_bytes, strict=True) if t.requires_grad)
    if is_view(op, block) and op.flop_backward == 0:
        # The gradient of a part (slice, split) or of a repeat (expand) is written anew.
        if sum(wanted.values()) == received and len(outputs) == 1:
            return 0.0
        return _time(work, 0, received + sum(wanted.values()), 1, accelerator)
    local = dict(zip(op.inputs, input_bytes, strict=True))
    local.update(zip(op.outputs, output_bytes, strict=True))
    saved = sum(local.get(name, 0) for name in op.saved)
    if op.target.startswith(_GATHERS):
        saved = sum(input_bytes[1:])
    saved += work.extra
    written = sum(wanted.values())
    kernels = len(wanted) if op.flop_backward else 1
    return _time(work, op.flop_backward, received + saved + written, kernels, accelerator)


def _time(work: _Work, flop: int, moved: float, kernels: int, accelerator: Accelerator) -> float:
    compute = 0.0
    if flop:
        local = work.flop(flop)
        rate = matmul_rate(accelerator, work.dtype)
        if _ATTENTION in work.op.target:
            rate *= accelerator.attention_efficiency
        else:
            rate *= accelerator.matmul_efficiency(local / kernels)
        compute = local / rate
    return max(compute, memory_time(moved, accelerator)) + kernels * accelerator.kernel_latency


def _is_causal(op: Op) -> bool:
    # aten.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal)
    if _ATTENTION not in op.target:
        return False
    return dict(op.kwargs).get("is_causal") is True or (len(op.args) > 5 and op.args[5] is True)


def _distinct(inputs: list[Tensor], sizes: list[int]) -> int:
    """Bytes read: an input used in two slots is read once, a storage no more than once."""
    largest: dict[str, int] = {}
    for tensor, size in zip(inputs, sizes, strict=True):
        largest[tensor.name] = max(size, largest.get(tensor.name, 0))
    return sum(largest.values())


def _main_dtype(inputs: list[Tensor], outputs: list[Tensor]) -> str:
    """Dtype of the first floating input (of the output if none): the type of a matmul."""
    for tensor in (*inputs, *outputs):
        if "float" in tensor.dtype and tensor.kind is not TensorKind.SHARED:
            return tensor.dtype
    floating = [t.dtype for t in (*inputs, *outputs) if "float" in t.dtype]
    return floating[0] if floating else (outputs[0].dtype if outputs else "float32")
