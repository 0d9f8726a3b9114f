"""How much of a block's forward is computed again in backward instead of being kept."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from autoplan.ir.graph import Graph, Op

__all__ = ["Recompute", "is_kept", "recompute_levels"]

Number = TypeVar("Number", int, float)

# Torch runs these as several operators that write into each other's results.
_RECURRENT = ("aten.gru.", "aten.lstm.", "aten.rnn_")


class Recompute(StrEnum):
    """Recompute level of a block.

    ``NONE`` keeps what autograd saves, ``FULL`` a block's inputs only. ``SELECTIVE`` keeps
    the inputs, the outputs of compute-bound operators and those of collectives.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"

    def of(self, none: Number, selective: Number, full: Number) -> Number:
        """What a level has, of the values of all three."""
        return {"none": none, "selective": selective, "full": full}[self.value]


def is_kept(op: Op) -> bool:
    """Whether the selective level keeps the operator's output: it is compute-bound."""
    return op.flop > 0


def recompute_levels(graph: Graph) -> tuple[Recompute, ...]:
    """Levels that a model can run at: recurrent layers have no selective one."""
    ops = (op for block in graph.classes for op in block.ops)
    if any(op.target.startswith(_RECURRENT) for op in ops):
        return Recompute.NONE, Recompute.FULL
    return tuple(Recompute)
