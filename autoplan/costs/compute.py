"""Seconds of one operator on one rank: a roofline with efficiency curves.

``time = max(flop / (peak * eff(flop)), bytes / (bandwidth * eff(bytes))) + kernel latency``

``flop`` is the operator's own, divided by the ranks when its strategy shards some input or
output: every local shape of such an operator is 1/ranks of the whole in one dimension of the
work, or what that is rounded up to where the dimension is padded. Fused attention skips the
half that a causal mask hides, though ``Op.flop`` counts it. It moves no scores. With a mask
tensor torch can't run its flash kernel; the one it runs instead is priced at the same rate,
which is what a catalogue holds, and reads the mask once: other heads find it in the cache.
A matmul with a row that does not begin at a multiple of 16 bytes runs on slower kernels: rows
have the sizes of the last dimensions of what it reads and writes.
``bytes`` are what the kernel reads and writes, what it keeps for backward included. Views
run no kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.costs.experts import Kernel, experts_again, experts_kernels, local_experts
from autoplan.costs.fanout import summed_slots
from autoplan.costs.fusion import Share, fusion
from autoplan.costs.matmul import Product, local_products, tiled_time
from autoplan.costs.signature import operator_signature
from autoplan.errors import InputError
from autoplan.ir.attention import attention_argument
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Op, Tensor, TensorKind, dtype_size
from autoplan.ir.hardware import Accelerator
from autoplan.ir.placement import Placement, Shard, shard_shape
from autoplan.ir.recompute import is_kept
from autoplan.ir.strategy import OpStrategy

__all__ = [
    "OpTime",
    "again_time",
    "dispatches",
    "is_sharded",
    "is_view",
    "local_bytes",
    "local_extra",
    "matmul_rate",
    "measured_time",
    "memory_time",
    "op_time",
    "update_time",
]

_ATTENTION = "scaled_dot_product"
# Kernels that read only the rows or elements they return.
_BAGS = ("aten.embedding_bag.", "aten._embedding_bag.")
_GATHERS = ("aten.embedding.", "aten.index_select.", "aten.index.", "aten.gather.", *_BAGS)
_NORMS = ("aten.layer_norm.", "aten.rms_norm.")
_ROW_BYTES = 16  # what tensor cores load at once: 8 elements of 16 bits
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


def local_extra(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> int:
    """Bytes of ``op.saved_extra`` that one rank keeps."""
    if op.target == EXPERTS and op.saved_extra:
        return local_experts(op, block, strategy, ranks).saved
    part, whole = _work_share(op, block, strategy, ranks)
    return op.saved_extra * part // whole


def _work_share(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> tuple[int, int]:
    """Part of the operator's work that one rank does, as a fraction; padding is work."""
    placements = (*strategy.inputs, *strategy.outputs)
    for name, placement in zip((*op.inputs, *op.outputs), placements, strict=True):
        if isinstance(placement, Shard) and placement.pad:
            size = block.tensor(name).shape[placement.dim]
            return -(-size // ranks), size
    return (1, ranks) if is_sharded(strategy) else (1, 1)


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


def best_matmul_share(accelerator: Accelerator) -> float:
    """Fraction of the peak that the best matmul reaches."""
    return max(share for _, share in accelerator.matmul_efficiency.points)


def memory_time(size: float, accelerator: Accelerator) -> float:
    """Seconds to move ``size`` bytes to or from the rank's memory, without latency."""
    if size <= 0:
        return 0.0
    return size / (accelerator.memory_bandwidth * accelerator.memory_efficiency(size))


def update_time(size: float, accelerator: Accelerator) -> float:
    """Seconds to move ``size`` bytes of tensors that are updated where they lie.

    A CPU is faster at that than at filling new memory, whose pages it must first be given.
    """
    curve = accelerator.update_efficiency
    if curve is None or size <= 0:
        return memory_time(size, accelerator)
    return size / (accelerator.memory_bandwidth * curve(size))


def op_time(
    op: Op, block: BlockClass, strategy: OpStrategy, ranks: int, accelerator: Accelerator
) -> OpTime:
    """Seconds of local compute, forward and backward: measured where the profile has it.

    Backward includes adding the gradients of inputs that other operators read too. Where
    programs are compiled, an operator that is fused has its share of the kernel instead.
    """
    summed = summed_slots(block)
    if accelerator.compiled:
        fused = fusion(block)
        summed = fused.summed
        if op.name in fused.absorbed:
            return OpTime(forward=0.0, backward=0.0)
        share = fused.shares.get(op.name)
        if share is not None:
            return _fused_time(op, share, block, strategy, ranks, accelerator)
    time = measured_time(op, block, strategy, ranks, accelerator)
    if time is None:
        time = _modelled_time(op, block, strategy, ranks, accelerator)
    sums = 0.0
    for slot in summed.get(op.name, ()):
        size = local_bytes(block.tensor(op.inputs[slot]), strategy.inputs[slot], ranks)
        sums += update_time(3 * size, accelerator) + accelerator.kernel_latency
    return OpTime(forward=time.forward, backward=time.backward + sums)


def _fused_time(
    op: Op,
    share: Share,
    block: BlockClass,
    strategy: OpStrategy,
    ranks: int,
    accelerator: Accelerator,
) -> OpTime:
    """Share of a fused kernel; the rate is that of all its bytes at this operator's sharding.

    A function of the runtime cuts the kernel in two: it runs as it does in a program that isn't
    compiled, and its neighbours in the group write and read what they share with it.
    """
    names = (*op.inputs, *op.outputs)
    sizes: dict[str, int] = {}
    for name, placement in zip(names, (*strategy.inputs, *strategy.outputs), strict=True):
        sizes[name] = max(sizes.get(name, 0), local_bytes(block.tensor(name), placement, ranks))
    latency = accelerator.kernel_latency
    if strategy.call and not _compiles(op, ranks):
        alone = _modelled_time(op, block, strategy, ranks, accelerator)
        cut = memory_time(sum(sizes[name] for name in share.inner), accelerator) + latency
        return OpTime(
            forward=alone.forward + cut, backward=alone.backward + (cut if alone.backward else 0.0)
        )
    whole = fusion(block).groups[share.group]

    def seconds(moved: tuple[tuple[str, float], ...], total: int, launches: int) -> float:
        local = sum(sizes[name] * times for name, times in moved)
        if not local:
            return launches * latency
        part = local / sum(block.tensor(name).size * times for name, times in moved)
        return memory_time(total * part, accelerator) * local / (total * part) + launches * latency

    return OpTime(
        forward=seconds(share.forward, whole.forward, share.forward_launches),
        backward=seconds(share.backward, whole.backward, share.backward_launches),
    )


def _compiles(op: Op, ranks: int) -> bool:
    """Whether torch.compile sees through the runtime's function: dropout without tp."""
    return ranks == 1 and op.target.startswith(("aten.dropout.", "aten.native_dropout."))


def again_time(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    ranks: int,
    accelerator: Accelerator,
    forward: float,
) -> float:
    """Seconds of the operator, whose forward takes ``forward``, in selective recompute."""
    if op.target == EXPERTS:
        region = local_experts(op, block, strategy, ranks)
        return min(forward, _sequence(experts_again(region), region.dtype, accelerator))
    return 0.0 if is_kept(op) else forward


def measured_time(
    op: Op, block: BlockClass, strategy: OpStrategy, ranks: int, accelerator: Accelerator
) -> OpTime | None:
    """Seconds as measured on the accelerator itself; None where its profile has no such work."""
    if accelerator.operators is None:
        return None
    if accelerator.compiled:
        fused = fusion(block)
        if op.name in fused.shares or op.name in fused.absorbed:
            return None  # it was measured on its own
    found = accelerator.operators.find(operator_signature(op, block, strategy, ranks))
    return None if found is None else OpTime(forward=found[0], backward=found[1])


def _modelled_time(
    op: Op, block: BlockClass, strategy: OpStrategy, ranks: int, accelerator: Accelerator
) -> OpTime:
    if op.target == EXPERTS:
        region = local_experts(op, block, strategy, ranks)
        forward_kernels, backward_kernels = experts_kernels(region)
        return OpTime(
            forward=_sequence(forward_kernels, region.dtype, accelerator),
            backward=_sequence(backward_kernels, region.dtype, accelerator),
        )
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
    part, whole = _work_share(op, block, strategy, ranks)
    extra = local_extra(op, block, strategy, ranks)
    share = part / whole * _visible(op, block, strategy, ranks)
    aligned = all(
        shard_shape(tensor.shape, placement, ranks)[-1] * dtype_size(tensor.dtype) % _ROW_BYTES == 0
        for tensor, placement in zip(
            (*inputs, *outputs), (*strategy.inputs, *strategy.outputs), strict=True
        )
        if len(tensor.shape) > 1
    )
    work = _Work(op, _main_dtype(inputs, outputs), share, extra, aligned)
    made = local_products(op, block, strategy, ranks) if op.flop else None
    forward = 0.0
    if not is_view(op, block):
        moved = sum(output_bytes) + work.extra
        if op.target.startswith(_GATHERS):
            rows = sum(output_bytes)
            if op.target.startswith(_BAGS):  # every row of a bag is read
                rows = rows * inputs[1].numel // max(1, outputs[0].shape[0])
            moved += rows + sum(input_bytes[1:])
        else:
            moved += _distinct(inputs, input_bytes)
        products = made[0] if made else ()
        forward = _time(work, op.flop, moved, 1, accelerator, products)
    products = made[1] if made else ()
    backward = _backward(
        op, block, strategy, ranks, input_bytes, output_bytes, work, accelerator, products
    )
    return OpTime(forward=forward, backward=backward)


def dispatches(op: Op, block: BlockClass, accelerator: Accelerator) -> tuple[int, int]:
    """How many operators the host issues for this one, forward and backward; views count."""
    if accelerator.compiled:
        fused = fusion(block)
        share = fused.shares.get(op.name)
        if share is not None:
            return share.forward_launches, share.backward_launches
        if op.name in fused.absorbed:
            return 0, 0
    wanted = sum(block.tensor(name).requires_grad for name in dict.fromkeys(op.inputs))
    if not wanted or not any(block.tensor(name).requires_grad for name in op.outputs):
        return 1, 0
    return 1, wanted if op.flop_backward else 1


def _sequence(kernels: tuple[Kernel, ...], dtype: str, accelerator: Accelerator) -> float:
    """Seconds of kernels one after another."""
    seconds = 0.0
    for kernel in kernels:
        compute = 0.0
        if kernel.flop:
            efficiency = accelerator.matmul_efficiency(kernel.flop)
            compute = kernel.flop / (matmul_rate(accelerator, dtype) * efficiency)
        seconds += max(compute, memory_time(kernel.moved, accelerator))
        seconds += accelerator.kernel_latency
    return seconds


@dataclass(frozen=True, slots=True)
class _Work:
    """The operator's work on one rank; ``extra`` is `local_extra`."""

    op: Op
    dtype: str
    share: float
    extra: int
    aligned: bool

    def flop(self, whole: int) -> float:
        """FLOP this rank carries out."""
        return whole * self.share


def _backward(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    ranks: int,
    input_bytes: list[int],
    output_bytes: list[int],
    work: _Work,
    accelerator: Accelerator,
    products: tuple[Product, ...],
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
    moved = received + saved + written
    seconds = _time(work, op.flop_backward, moved, kernels, accelerator, products)
    if any(block.tensor(n).kind is TensorKind.PARAMETER for n in wanted if _is_vector(n, block)):
        # Sums over all rows, in a kernel of their own: of a bias, or of a norm's weights.
        if products:
            seconds += memory_time(received, accelerator)
        elif op.target.startswith(_NORMS):
            seconds += memory_time(received + input_bytes[0], accelerator)
            seconds += accelerator.kernel_latency
    return seconds


def _is_vector(name: str, block: BlockClass) -> bool:
    return len(block.tensor(name).shape) == 1


def _time(
    work: _Work,
    flop: int,
    moved: float,
    kernels: int,
    accelerator: Accelerator,
    products: tuple[Product, ...] = (),
) -> float:
    compute = 0.0
    if products and accelerator.matmul_tiles is not None:
        rate = matmul_rate(accelerator, work.dtype) * best_matmul_share(accelerator)
        if not work.aligned:
            rate *= accelerator.unaligned_matmul
        compute = sum(tiled_time(product, rate, accelerator.matmul_tiles) for product in products)
    elif flop:
        local = work.flop(flop)
        rate = matmul_rate(accelerator, work.dtype)
        if _ATTENTION in work.op.target:
            rate *= accelerator.attention_efficiency
        else:
            rate *= accelerator.matmul_efficiency(local / kernels)
            if not work.aligned:
                rate *= accelerator.unaligned_matmul
        compute = local / rate
    return max(compute, memory_time(moved, accelerator)) + kernels * accelerator.kernel_latency


def _visible(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> float:
    """Part of the scores that a causal kernel computes; of sharded rows, on the last rank.

    That rank's rows see nearly all keys, and the others wait for it. A mask that is a tensor
    saves nothing, whatever it hides.
    """
    if _ATTENTION not in op.target or attention_argument(op, "is_causal") is not True:
        return 1.0
    queries, keys = (block.tensor(name).shape[-2] for name in op.inputs[:2])
    if strategy.call == "row_attention":
        return min(1.0, queries * (1 - 1 / (2 * ranks)) / keys)
    return queries / (2 * keys) if queries <= keys else 1 - keys / (2 * queries)


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
