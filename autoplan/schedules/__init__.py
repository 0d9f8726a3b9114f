"""Pipeline schedules: the order of actions of each stage, and what it holds in flight.

A schedule is a module with ``order`` and ``in_flight``, named in the table below.
"""

from __future__ import annotations

from autoplan.errors import UsageError
from autoplan.schedules import gpipe, one_f_one_b
from autoplan.schedules.action import Action, ActionKind

__all__ = ["SCHEDULES", "Action", "ActionKind", "in_flight", "order"]

_ORDER = {"gpipe": gpipe.order, "1f1b": one_f_one_b.order}
_IN_FLIGHT = {"gpipe": gpipe.in_flight, "1f1b": one_f_one_b.in_flight}

SCHEDULES = tuple(_ORDER)
"""Names of the schedules."""


def order(schedule: str, stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Actions of a stage in the order it runs them.

    >>> " ".join(map(str, order("1f1b", 1, 3, 3)))
    '1F0 1F1 1B0 1F2 1B1 1B2'
    """
    _check(schedule)
    return _ORDER[schedule](stage, stages, microbatches)


def in_flight(schedule: str, stage: int, stages: int, microbatches: int) -> int:
    """Most microbatches whose activations a stage holds at once.

    >>> [in_flight("1f1b", stage, 4, 8) for stage in range(4)]
    [4, 3, 2, 1]
    """
    _check(schedule)
    return _IN_FLIGHT[schedule](stage, stages, microbatches)


def _check(schedule: str) -> None:
    if schedule not in _ORDER:
        raise UsageError(f"unknown schedule {schedule!r}", hint=f"one of: {', '.join(SCHEDULES)}")
