"""GPipe: all forwards, then all backwards, each in microbatch order (Huang et al. 2019)."""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind

__all__ = ["in_flight", "order"]


def order(stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a stage in the order it runs them."""
    return tuple(
        Action(stage, kind, microbatch)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
        for microbatch in range(microbatches)
    )


def in_flight(stage: int, stages: int, microbatches: int) -> int:
    """Most microbatches whose activations a stage holds at once."""
    return microbatches
