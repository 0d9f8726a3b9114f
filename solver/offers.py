"""Strategies of a block's operators with their seconds, found once for bounds and programs."""

from __future__ import annotations

from autoplan.costs.compute import OpTime, op_time
from autoplan.ir.graph import BlockClass
from autoplan.ir.hardware import Accelerator
from autoplan.ir.memo import by_identity
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import registered_targets, strategies

__all__ = ["Offer", "offers"]

Offer = tuple[OpStrategy, OpTime]


def offers(
    block: BlockClass, ranks: int, accelerator: Accelerator
) -> tuple[tuple[Offer, ...], ...]:
    """Legal strategies of each operator, and the seconds of its local compute."""
    return _offers(block, ranks, accelerator, len(registered_targets()))


@by_identity(8192)
def _offers(
    block: BlockClass, ranks: int, accelerator: Accelerator, rules: int
) -> tuple[tuple[Offer, ...], ...]:
    # A rule may come, but none goes or changes: their number tells their states apart.
    return tuple(
        tuple(
            (strategy, op_time(op, block, strategy, ranks, accelerator))
            for strategy in strategies(op, block, ranks)
        )
        for op in block.ops
    )
