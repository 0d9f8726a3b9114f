"""Gradients of a tensor that several operators read: autograd adds them up, a kernel each."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.ir.graph import BlockClass
from autoplan.ir.memo import by_identity

__all__ = ["summed_slots"]


@by_identity(1024)
def summed_slots(block: BlockClass) -> Mapping[str, tuple[int, ...]]:
    """Input slots by operator whose gradient is added to one that is there already.

    Of the operators that read a tensor, the first in forward order is the last in backward;
    all but one of them cause an addition, and here it is the later ones in forward order.
    """
    read: set[str] = set()
    summed: dict[str, tuple[int, ...]] = {}
    for op in block.ops:
        if not any(block.tensor(name).requires_grad for name in op.outputs):
            continue
        slots = []
        for slot, name in enumerate(op.inputs):
            if block.tensor(name).requires_grad:
                if name in read:
                    slots.append(slot)
                read.add(name)
        if slots:
            summed[op.name] = tuple(slots)
    return summed
