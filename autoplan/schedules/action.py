"""Actions of a pipeline schedule, named as in torch: ``1F0`` is stage 1, forward, microbatch 0."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Action", "ActionKind"]


class ActionKind(StrEnum):
    """What a stage does with a microbatch."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True)
class Action:
    """One step of one stage on one microbatch."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"
