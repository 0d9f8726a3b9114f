"""How one operator runs on the ranks of one mesh axis."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.ir.graph import Op
from autoplan.ir.placement import CollectiveKind, Placement, Replicate

__all__ = ["InnerCollective", "OpStrategy"]


@dataclass(frozen=True, slots=True)
class InnerCollective:
    """A collective inside an operator's own implementation.

    ``payload`` is the bytes of the whole (gathered or reduced) tensor, or of what a rank
    sends; ``copied`` those that a rank reads and writes to join what it received.
    """

    kind: CollectiveKind
    payload: int
    backward: bool = False
    copied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStrategy:
    """Placements of the input slots and outputs of an operator on one axis.

    ``inputs`` follows `Op.inputs`, one placement a slot. ``call`` names the function of
    the runtime that replaces the ATen call (``""``: the ATen call itself on local shards).
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    inner: tuple[InnerCollective, ...] = ()
    call: str = ""

    def __str__(self) -> str:
        ins = ",".join(map(str, self.inputs))
        outs = ",".join(map(str, self.outputs))
        return f"{ins} -> {outs}" + (f" [{self.call}]" if self.call else "")

    @classmethod
    def whole(cls, op: Op) -> OpStrategy:
        """Strategy of an operator on whole tensors."""
        return cls(inputs=(Replicate(),) * len(op.inputs), outputs=(Replicate(),) * len(op.outputs))
