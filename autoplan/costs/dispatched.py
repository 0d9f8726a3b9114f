"""How many calls a dispatch mode sees of one operator, as selective recompute's does.

Such a mode is called for each of torch's single operators, views included: those that a composite
operator is made of, and those in a function of the runtime. It looks at each in both forwards,
whatever it is, and that is what recompute costs beyond running operators again. A collective is
one call. Calls that torch's mode passes through (``detach``) are not counted.
"""

from __future__ import annotations

from autoplan.ir.graph import Op, aten_name
from autoplan.ir.strategy import OpStrategy

__all__ = ["CALLS", "OPERATORS", "dispatched"]

CALLS = {
    "batch_norm": 6,
    "channel_batch_norm": 18,
    "halo_convolution": 7,
    "replicated_dropout": 6,
    "row_attention": 3,
    "row_cross_entropy": 8,
    "row_parallel_linear": 5,
    "sharded_dropout": 6,
    "sharded_log_softmax": 9,
    "sharded_softmax": 8,
    "synced_batch_norm": 28,
    "synced_group_norm": 23,
    "synced_instance_norm": 23,
    "synced_layer_norm": 23,
    "synced_rms_norm": 15,
    "vocab_cross_entropy": 29,
    "vocab_embedding": 8,
}
"""Calls of a function of the runtime; of one that isn't here, one."""

OPERATORS = {
    "cross_entropy_loss": 2,
    "instance_norm": 6,
    "linear": 4,
    "matmul": 6,
    "rms_norm": 6,
}
"""Calls of a composite operator of torch on tensors of three dims."""


def dispatched(op: Op, strategy: OpStrategy) -> int:
    """Calls of an operator under a strategy; at least one."""
    if strategy.call:
        return CALLS.get(strategy.call, 1)
    return OPERATORS.get(aten_name(op.target), 1)
