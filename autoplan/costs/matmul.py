"""Seconds of matrix products on devices that work them off in tiles.

A product of ``[m, k]`` by ``[k, n]`` is cut into tiles of the result. A multiprocessor computes
one at a time, so the time is that of whole waves of tiles:

    ceil(tiles / multiprocessors) * (flop of a tile / rate of a multiprocessor + overhead)

for the best of three shapes of tile. ``overhead`` is what filling and draining the pipeline of a
tile takes, which makes shallow products (small k) slow. Rate and overhead are those that a sweep
of measured products shows; `profiles/hardware` says how well they fit it. Source of the idea:
NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantization).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.ir.graph import BlockClass, Op
from autoplan.ir.hardware import MatmulTiles
from autoplan.ir.placement import shard_shape
from autoplan.ir.strategy import OpStrategy

__all__ = ["Product", "local_products", "tiled_time"]

_TILES = ((128, 256), (256, 128), (128, 128))
_PLAIN = ("aten.mm.", "aten.bmm.", "aten.matmul.")


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products of ``[m, k]`` by ``[k, n]``."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        """FLOP, one multiply-add = 2."""
        return 2 * self.batch * self.m * self.n * self.k


def tiled_time(product: Product, rate: float, tiles: MatmulTiles) -> float:
    """Seconds of a product on a device whose best rate is ``rate`` FLOP/s."""
    one = rate / tiles.multiprocessors
    best = math.inf
    for rows, columns in _TILES:
        count = product.batch * math.ceil(product.m / rows) * math.ceil(product.n / columns)
        waves = math.ceil(count / tiles.multiprocessors)
        best = min(best, waves * (2 * rows * columns * product.k / one + tiles.overhead))
    return best


def local_products(
    op: Op, block: BlockClass, strategy: OpStrategy, ranks: int
) -> tuple[tuple[Product, ...], tuple[Product, ...]] | None:
    """Products that one rank computes forward and backward; None if the operator is not one."""
    if op.target.startswith("aten.linear."):
        left, right, transposed = 0, 1, True
    elif op.target.startswith("aten.addmm."):
        left, right, transposed = 1, 2, False
    elif op.target.startswith(_PLAIN):
        left, right, transposed = 0, 1, False
    else:
        return None
    shapes = [
        shard_shape(block.tensor(op.inputs[slot]).shape, strategy.inputs[slot], ranks)
        for slot in (left, right)
    ]
    result = shard_shape(block.tensor(op.outputs[0]).shape, strategy.outputs[0], ranks)
    if min(map(len, (*shapes, result))) < 2:
        return None
    k = shapes[0][-1]
    n = shapes[1][-2] if transposed else shapes[1][-1]
    if len(shapes[1]) == 2:  # one right side for all: a single tall product
        batch, m = 1, math.prod(shapes[0][:-1])
    else:
        batch, m = math.prod(result[:-2]), shapes[0][-2]
    backward = []
    if block.tensor(op.inputs[left]).requires_grad:
        backward.append(Product(batch, m, k, n))
    if block.tensor(op.inputs[right]).requires_grad:
        backward.append(Product(batch, k, n, m))
    return (Product(batch, m, n, k),), tuple(backward)
