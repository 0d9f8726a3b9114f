"""Dims worth padding: vocabularies, which seldom divide by the ranks.

A padded shard is legal only where garbage in the padding can't reach a value or a gradient:
from the table or the head to a loss that leaves the padding out. So rules offer it for the
sizes found here alone, through operators that keep padding finite (`OpView.padded`).
"""

from __future__ import annotations

from autoplan.ir.graph import BlockClass
from autoplan.ir.memo import by_identity

__all__ = ["padded_sizes"]


@by_identity(512)
def padded_sizes(block: BlockClass) -> tuple[int, ...]:
    """Sizes of the vocabularies of a block, sorted: rows of tables, classes of losses."""
    found: set[int] = set()
    for op in block.ops:
        if op.target.startswith(("aten.embedding.", "aten.embedding_bag.", "aten._embedding_bag.")):
            found.add(block.tensor(op.inputs[0]).shape[0])
        elif op.target.startswith("aten.cross_entropy_loss."):
            shape = block.tensor(op.inputs[0]).shape
            if len(shape) == 2:
                found.add(shape[1])
    return tuple(sorted(found))
