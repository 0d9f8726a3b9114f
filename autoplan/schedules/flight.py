"""What a rank holds in flight, found by going through its order.

A forward leaves the activations of its stage and microbatch behind; a full backward frees them.
A backward for the input is counted as freeing none: torch runs it with the graph retained, and
only what was saved after the last operator that has parameters is freed before the backward
for the parameters. Between the two, gradients of intermediate tensors are held as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from autoplan.schedules.action import Action, ActionKind, Step, single_actions

__all__ = [
    "flights_of",
    "held_by_all",
    "held_together",
    "most_held",
    "most_in_flight",
    "most_pending",
]


def most_in_flight(steps: Iterable[Step]) -> int:
    """Most pairs of stage and microbatch whose activations are alive at once."""
    return _peak(steps, _activations)


def flights_of(steps: Iterable[Step]) -> dict[int, int]:
    """Most microbatches whose activations are alive at once, by stage."""
    most: Counter[int] = Counter()
    for held in _held(steps):
        most |= held
    return dict(most)


def held_by_all(steps: Sequence[Step]) -> int:
    """Most microbatches that each of the stages holds, all of them at one moment."""
    stages = {action.stage for action in single_actions(steps)}
    return max(min(held[stage] for stage in stages) for held in _held(steps))


def held_together(steps: Sequence[Step]) -> list[dict[int, int]]:
    """Microbatches that each stage holds, at all moments at which no other moment has more."""
    stages = sorted({action.stage for action in single_actions(steps)})
    moments = {tuple(held[stage] for stage in stages) for held in _held(steps)}
    found: list[tuple[int, ...]] = []
    for one in sorted(moments, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(one, more, strict=True)) for more in found):
            found.append(one)
    return [dict(zip(stages, one, strict=True)) for one in found]


def _held(steps: Iterable[Step]) -> Iterator[Counter[int]]:
    """Microbatches that each stage holds, after every action."""
    held: Counter[int] = Counter()
    for action in single_actions(steps):
        held[action.stage] += _activations(action)
        yield held


def _activations(action: Action) -> int:
    if action.kind is ActionKind.FORWARD:
        return 1
    return 0 if action.kind is ActionKind.BACKWARD_INPUT else -1


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
