"""The points of a sweep, one after the other: who gets how much time, and what a stop leaves.

The time left is shared evenly by the points left, so what one doesn't need is the others'.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autoplan.errors import InfeasibleError, SolverLimitError, UsageError
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import Plan

__all__ = ["Answer", "End", "GridPoint", "Refusal", "solve_points"]

Refusal = InfeasibleError | SolverLimitError | UsageError
Answer = Plan | Refusal
End = Literal["complete", "time_limit", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """What a point asks: cluster, sequences a step, bytes a rank (None: what is usable)."""

    cluster: Cluster
    global_batch: int
    memory_limit: int | None


def solve_points(
    points: int,
    plan: Callable[[int, float], Plan],
    *,
    time_limit: float,
    found: Callable[[int, Answer], None],
    now: Callable[[], float] = time.monotonic,
) -> End:
    """Ask for the plan of each point by its number, within some seconds, and hand on what comes.

    Ends early when ``time_limit`` seconds have passed or at an interrupt, which may have cut a
    plan's search short; points that were not reached are not handed on.
    """
    deadline = now() + time_limit
    try:
        for index in range(points):
            left = deadline - now()
            if left <= 0:
                return "time_limit"
            answer: Answer
            try:
                answer = plan(index, left / (points - index))
            except (InfeasibleError, SolverLimitError, UsageError) as error:
                answer = error
            found(index, answer)
            if isinstance(answer, Plan) and answer.prediction.termination == "interrupted":
                return "interrupted"
    except KeyboardInterrupt:
        return "interrupted"
    return "complete"
