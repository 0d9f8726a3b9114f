"""Who gets how much of a sweep's time, and what is left when it stops."""

from __future__ import annotations

import pytest

from autoplan.errors import CaptureError, InfeasibleError, UsageError
from autoplan.ir.plan import Plan
from autoplan.solver.grid import Answer, End, solve_points


class Clock:
    """Seconds that only plans take; the answer to each point is an error or a plan."""

    def __init__(self, took: list[float], answers: list[Answer | BaseException]) -> None:
        self.now, self.took, self.answers = 0.0, took, answers
        self.given: list[float] = []
        self.found: dict[int, Answer] = {}

    def plan(self, index: int, seconds: float) -> Plan:
        self.given.append(seconds)
        self.now += self.took[index]
        answer = self.answers[index]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self, time_limit: float) -> End:
        return solve_points(
            len(self.answers),
            self.plan,
            time_limit=time_limit,
            found=self.found.__setitem__,
            now=lambda: self.now,
        )


def test_time_that_one_does_not_need_is_the_others(plan: Plan) -> None:
    clock = Clock([1.0, 2.0, 30.0], [plan] * 3)
    assert clock.run(30.0) == "complete"
    assert clock.given == [10.0, 29.0 / 2, 27.0]
    assert list(clock.found) == [0, 1, 2]


def test_points_after_the_limit_are_not_reached(plan: Plan) -> None:
    clock = Clock([4.0, 7.0, 1.0], [plan] * 3)
    assert clock.run(10.0) == "time_limit"
    assert list(clock.found) == [0, 1]


def test_what_has_no_plan_does_not_stop_the_others(plan: Plan) -> None:
    errors = [InfeasibleError("nothing fits"), UsageError("not legal")]
    clock = Clock([1.0] * 3, [*errors, plan])
    assert clock.run(10.0) == "complete"
    assert list(clock.found.values()) == [*errors, plan]


def test_an_interrupt_keeps_what_was_found(plan: Plan) -> None:
    clock = Clock([1.0] * 3, [plan, KeyboardInterrupt(), plan])
    assert clock.run(10.0) == "interrupted"
    assert clock.found == {0: plan}
    cut_short = plan.model_copy(
        update={"prediction": plan.prediction.model_copy(update={"termination": "interrupted"})}
    )
    clock = Clock([1.0] * 3, [plan, cut_short, plan])
    assert clock.run(10.0) == "interrupted"
    assert clock.found == {0: plan, 1: cut_short}


def test_other_errors_are_no_answer(plan: Plan) -> None:
    with pytest.raises(CaptureError):
        Clock([1.0], [CaptureError("not traceable")]).run(10.0)
