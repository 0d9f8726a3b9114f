"""Dropout. Ranks that hold the same value must drop the same elements, others must not.

The runtime keeps one generator of random numbers that is equal on all ranks of the axis,
used by ``replicated_dropout``, and one for each rank, used by ``sharded_dropout``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.pointwise import elementwise_shards
from autoplan.rules.registry import OpView, P, R, rule

__all__ = ["dropout"]


@rule("aten.dropout.default", "aten.dropout_.default")
def dropout(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim; the identity when it drops nothing."""
    drops = view.arg(1, "p", 0.5) not in (0, 0.0) and view.arg(2, "train", True) is True
    if not drops:
        yield from elementwise_shards(view)
        yield view.strategy({0: P}, P)
        return
    yield view.strategy({}, R, call="replicated_dropout")
    for strategy in elementwise_shards(view):
        yield view.strategy({0: strategy.inputs[0]}, *strategy.outputs, call="sharded_dropout")
