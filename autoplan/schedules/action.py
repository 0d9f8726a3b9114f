"""Actions of a pipeline schedule, named as in torch: ``1F0`` is stage 1, forward, microbatch 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Action", "ActionKind", "Overlapped", "Step", "single_actions"]


class ActionKind(StrEnum):
    """What a stage does with a microbatch.

    ``BACKWARD`` is the whole of it; schedules that fill bubbles run it in two parts, first the
    gradient of the stage's input, later that of its parameters.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Action:
    """One step of one stage on one microbatch."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A forward and a full backward that the schedule lets a rank run at the same time.

    torch runs one after the other, in this order, unless the program registers a function of
    its own for the pair; both results are sent after the second.
    """

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Step = Action | Overlapped
"""What stands at one place of a rank's order."""


def single_actions(steps: Iterable[Step]) -> Iterator[Action]:
    """Actions of an order, pairs taken apart.

    >>> pair = Overlapped(Action(0, ActionKind.FORWARD, 3), Action(7, ActionKind.BACKWARD, 1))
    >>> [str(action) for action in single_actions([pair])]
    ['0F3', '7B1']
    """
    for step in steps:
        if isinstance(step, Overlapped):
            yield step.forward
            yield step.backward
        else:
            yield step
