"""Routed experts on one rank: sizes of its part, and the kernels that run one after another.

Routing is taken as balanced: a rank with ``1 / n`` of the experts has ``1 / n`` of the rows.
Sorting, moving rows and the activation are kernels of their own: their bytes are not hidden
behind the products, as those of one fused operator would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoplan.ir.experts import ExpertsRegion, argument, experts_region
from autoplan.ir.graph import BlockClass, Op, Ref, dtype_size
from autoplan.ir.placement import Shard
from autoplan.ir.strategy import OpStrategy

__all__ = [
    "Kernel",
    "experts_again",
    "experts_kernels",
    "experts_products",
    "local_experts",
    "wide",
]

_SORTING = 4  # sort, look-up of the group ends, of the routing weights, and their reshape


@dataclass(frozen=True, slots=True)
class Kernel:
    """FLOP and bytes of one kernel."""

    flop: int
    moved: int


def local_experts(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> ExpertsRegion:
    """The region as one rank has it: its tokens, its experts or its part of each."""
    region = experts_region(op, block.tensor, name=op.name)
    placements = dict(zip(op.inputs, strategy.inputs, strict=True))
    index, down = argument(op, "index"), argument(op, "down")
    assert isinstance(index, Ref) and isinstance(down, Ref)
    if isinstance(placements[index.name], Shard):
        return replace(region, tokens=region.tokens // ranks, rows=region.rows // ranks)
    match placements[down.name]:
        case Shard(dim=0):
            count = region.num_experts // ranks
            return replace(region, num_experts=count, rows=region.rows // ranks)
        case Shard():
            return replace(region, ffn=region.ffn // ranks)
    return region


def experts_kernels(region: ExpertsRegion) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels of the forward and of the backward."""
    r, size, width = region, dtype_size(region.dtype), wide(region)
    rows, tokens = r.rows * r.hidden, r.tokens * r.hidden
    chosen = tokens * r.top_k  # rows of all ranks' experts: what the sum over experts reads
    inner, product = r.rows * r.projected, r.rows * r.ffn
    up_weight = r.num_experts * r.hidden * r.projected * size
    down_weight = r.num_experts * r.hidden * r.ffn * size
    up = Kernel(2 * r.rows * r.hidden * r.projected, (rows + inner) * size + up_weight)
    down = Kernel(2 * r.rows * r.hidden * r.ffn, (product + rows) * size + down_weight)
    small = Kernel(0, 8 * 3 * r.rows)
    forward = (
        *(small,) * _SORTING,
        Kernel(0, 2 * rows * size),
        up,
        Kernel(0, (inner + product) * size),
        down,
        Kernel(0, rows * (size + width)),
        Kernel(0, 2 * rows * width),
        Kernel(0, (chosen + tokens) * width),
    )
    into_up = r.hidden_grad or r.up_grad
    if not (into_up or r.down_grad or r.weights_grad):
        return forward, ()
    backward = [Kernel(0, 2 * rows * width)]
    if into_up or r.weights_grad:
        backward += [down, Kernel(0, 2 * product * size)]
    if r.weights_grad:
        backward += [Kernel(0, 2 * product * size), small]
    if r.down_grad:
        backward += [Kernel(0, rows * (width + size)), down]
    if into_up:
        backward.append(Kernel(0, 2 * (inner + product) * size))
    if r.up_grad:
        backward.append(Kernel(0, 2 * rows * size))
    backward += [up] * (r.hidden_grad + r.up_grad)
    if r.hidden_grad:
        backward += [Kernel(0, 2 * rows * size), Kernel(0, (chosen + tokens) * size)]
    return forward, tuple(backward)


def experts_products(region: ExpertsRegion) -> tuple[int, int]:
    """Bytes of the products that the selective recompute level keeps: of the first, the last."""
    r = region
    return r.rows * r.projected * dtype_size(r.dtype), r.rows * r.hidden * wide(r)


def experts_again(region: ExpertsRegion) -> tuple[Kernel, ...]:
    """Kernels of the forward that run again when the products are kept."""
    r, size, width = region, dtype_size(region.dtype), wide(region)
    small = Kernel(0, 8 * 3 * r.rows)
    activation = Kernel(0, r.rows * (r.projected + r.ffn) * size)
    return (
        *(small,) * _SORTING,
        activation,
        Kernel(0, 2 * r.rows * r.hidden * width),
        Kernel(0, r.tokens * r.hidden * (r.top_k + 1) * width),
    )


def wide(region: ExpertsRegion) -> int:
    """Bytes of an element of the weighted rows: routing weights may be wider than tokens."""
    return max(dtype_size(region.dtype), dtype_size(region.weight_dtype))
