"""How much of a block's forward is computed again in backward instead of being kept."""

from __future__ import annotations

from enum import StrEnum

from autoplan.ir.graph import Op

__all__ = ["Recompute", "is_kept"]


class Recompute(StrEnum):
    """Recompute level of a plan, the same for all blocks.

    ``NONE`` keeps what autograd saves, ``FULL`` a block's inputs only. ``SELECTIVE`` keeps
    the inputs, the outputs of compute-bound operators and those of collectives.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


def is_kept(op: Op) -> bool:
    """Whether the selective level keeps the operator's output: it is compute-bound."""
    return op.flop > 0
