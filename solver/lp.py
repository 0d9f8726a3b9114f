"""Programs through PuLP, what the array hand-over is tested with; only here pulp is imported.

PuLP 3.3 and 4.x build expressions and report statuses differently, so the status, bound and
solution are read from the HiGHS object that both keep on the problem.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import pulp

from autoplan.solver.highs import (
    OPTIONS,
    RELAXATION_OPTIONS,
    RepeatedLp,
    optimum,
    silent_stdout,
    timed_run,
)
from autoplan.solver.linear import LpModel, LpResult, Row, Sense

__all__ = ["Handover", "solve_lp"]

_LEGACY = int(pulp.__version__.split(".")[0]) < 4


class Handover(StrEnum):
    """How HiGHS gets a model: as PuLP's objects, or the same program as arrays (faster)."""

    PULP = "pulp"
    ARRAYS = "arrays"


def solve_lp(model: LpModel, *, deadline: float, handover: Handover = Handover.PULP) -> LpResult:
    """Optimum, or the best found by ``deadline`` (a `time.monotonic` instant)."""
    if handover is Handover.ARRAYS:
        return RepeatedLp(model).solve(np.array(model.costs), deadline=deadline)
    problem = _PulpRun(model)

    def run(integral: bool) -> tuple[Any, float]:
        with silent_stdout():
            return problem(deadline=deadline, integral=integral)

    return optimum(model, run, deadline=deadline)


class _PulpRun:
    """Runs a model that PuLP holds and hands over."""

    def __init__(self, model: LpModel) -> None:
        self._problem = pulp.LpProblem("autoplan", pulp.LpMinimize)
        width = len(str(len(model.costs)))
        # PuLP 3 orders variables by name; padding makes that the order of creation.
        variables = [
            self._problem.add_variable(
                f"x{index:0{width}d}", 0, 1, pulp.LpInteger if integer else pulp.LpContinuous
            )
            for index, integer in enumerate(model.integer)
        ]
        self._problem.setObjective(_expression(list(zip(variables, model.costs, strict=True))))
        for row in model.rows:
            terms = [
                (variables[index], coefficient)
                for index, coefficient in zip(row.variables, row.coefficients, strict=True)
            ]
            self._problem.addConstraint(_constraint(terms, row))

    def __call__(self, *, deadline: float, integral: bool) -> tuple[Any, float]:
        """The HiGHS object after its run, and the seconds of that."""
        solver = _Highs(deadline=deadline, mip=integral)
        self._problem.solve(solver)
        return self._problem.solverModel, solver.run_time


class _Highs(pulp.HiGHS):  # type: ignore[misc, unused-ignore]
    """HiGHS, exact and repeatable, whose time limit counts PuLP's hand-over too."""

    def __init__(self, *, deadline: float, mip: bool) -> None:
        super().__init__(mip=mip, msg=False, **(OPTIONS if mip else RELAXATION_OPTIONS))
        self.deadline = deadline
        self.integral = mip
        self.run_time = 0.0

    def callSolver(self, lp: Any) -> None:
        self.run_time = timed_run(lp.solverModel, self.deadline, integral=self.integral)


def _expression(terms: list[tuple[Any, float]]) -> Any:
    if _LEGACY:
        return pulp.LpAffineExpression(terms)
    return pulp.LpAffineExpression.from_list(terms)


def _constraint(terms: list[tuple[Any, float]], row: Row) -> Any:
    expression = _expression(terms)
    if _LEGACY:
        senses = {Sense.EQUAL: 0, Sense.AT_MOST: -1, Sense.AT_LEAST: 1}
        return pulp.LpConstraint(expression, senses[row.sense], rhs=row.bound)
    match row.sense:
        case Sense.EQUAL:
            return expression == row.bound
        case Sense.AT_MOST:
            return expression <= row.bound
        case Sense.AT_LEAST:
            return expression >= row.bound
