"""What a rank holds in flight, found by going through its order.

A forward leaves the activations of its stage and microbatch behind; a full backward frees them.
A backward for the input is counted as freeing none: torch runs it with the graph retained, and
only what was saved after the last operator that has parameters is freed before the backward
for the parameters. Between the two, gradients of intermediate tensors are held as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autoplan.schedules.action import Action, ActionKind, Step, single_actions

__all__ = ["most_held", "most_in_flight", "most_pending"]


def most_in_flight(steps: Iterable[Step]) -> int:
    """Most pairs of stage and microbatch whose activations are alive at once."""

    def change(action: Action) -> int:
        if action.kind is ActionKind.FORWARD:
            return 1
        return 0 if action.kind is ActionKind.BACKWARD_INPUT else -1

    return _peak(steps, change)


def most_pending(steps: Iterable[Step]) -> int:
    """Most pairs of stage and microbatch between the two parts of their backward at once."""

    def change(action: Action) -> int:
        if action.kind is ActionKind.BACKWARD_INPUT:
            return 1
        return -1 if action.kind is ActionKind.BACKWARD_WEIGHT else 0

    return _peak(steps, change)


def most_held(
    steps: Iterable[Step], activation: Callable[[int], int], pending: Callable[[int], int]
) -> int:
    """Most bytes held at once, when stages differ.

    ``activation(stage)`` is bytes of one microbatch from its forward on, ``pending(stage)`` bytes
    that its backward for the input adds (or, negative, frees) until that for the parameters.
    """

    def change(action: Action) -> int:
        if action.kind is ActionKind.FORWARD:
            return activation(action.stage)
        if action.kind is ActionKind.BACKWARD_INPUT:
            return pending(action.stage)
        split = action.kind is ActionKind.BACKWARD_WEIGHT
        return -activation(action.stage) - (pending(action.stage) if split else 0)

    return _peak(steps, change)


def _peak(steps: Iterable[Step], change: Callable[[Action], int]) -> int:
    held = most = 0
    for action in single_actions(steps):
        held += change(action)
        most = max(most, held)
    return most
