"""1F1B: warm up, then one backward and one forward in turn (Narayanan et al. 2019, 2021).

Stage s of p runs ``min(m, p - s)`` forwards before its first backward, so it never holds more
microbatches than that. This is the order in which torch's ``Schedule1F1B`` steps.
"""

from __future__ import annotations

from autoplan.schedules.action import Action, ActionKind

__all__ = ["in_flight", "order"]


def order(stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a stage in the order it runs them."""
    warmup = in_flight(stage, stages, microbatches)
    actions = [Action(stage, ActionKind.FORWARD, m) for m in range(warmup)]
    for microbatch in range(microbatches):
        actions.append(Action(stage, ActionKind.BACKWARD, microbatch))
        if microbatch + warmup < microbatches:
            actions.append(Action(stage, ActionKind.FORWARD, microbatch + warmup))
    return tuple(actions)


def in_flight(stage: int, stages: int, microbatches: int) -> int:
    """Most microbatches whose activations a stage holds at once."""
    return min(microbatches, stages - stage)
