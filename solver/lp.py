"""Linear and 0-1 programs through PuLP and HiGHS; the only module that imports pulp.

`LpModel` holds a minimisation as plain numbers; `solve` hands it to HiGHS, first without the
integrality of its variables and again with it only when that answer is fractional. PuLP 3.3
and 4.x build expressions and report statuses differently, so the status, bound and solution
are read from the HiGHS object that both keep on the problem. Where PuLP's objects take longer
than the solve, the same program goes over as arrays; PuLP is what the tests compare it with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import highspy
import numpy as np
import pulp

__all__ = ["Handover", "LpModel", "LpResult", "Sense", "Termination"]

_INTEGRALITY = 1e-6
_LEGACY = int(pulp.__version__.split(".")[0]) < 4


class Sense(StrEnum):
    """Relation of a row to its right-hand side."""

    EQUAL = "="
    AT_MOST = "<="
    AT_LEAST = ">="


class Handover(StrEnum):
    """How HiGHS gets a model: as PuLP's objects, or the same program as arrays (faster)."""

    PULP = "pulp"
    ARRAYS = "arrays"


class Termination(StrEnum):
    """Why the solver stopped; whether it has a solution is a separate matter."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LpResult:
    """Answer to a program: ``values`` by variable, empty without a solution.

    ``bound`` is a proven lower bound of the optimum. ``relaxation_integral`` says that the
    linear relaxation was already the answer. ``build_time`` and ``solve_time`` are seconds
    for the hand-over through PuLP and for HiGHS itself.
    """

    termination: Termination
    has_solution: bool
    objective: float
    bound: float
    values: tuple[float, ...]
    relaxation_integral: bool
    build_time: float
    solve_time: float


@dataclass(frozen=True, slots=True)
class _Row:
    sense: Sense
    bound: float
    variables: Sequence[int]
    coefficients: Sequence[float]


@dataclass(slots=True)
class LpModel:
    """A minimisation over variables in [0, 1], some of them integer."""

    costs: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)

    def variable(self, cost: float = 0.0, *, integer: bool = False) -> int:
        """Index of a new variable in [0, 1]."""
        self.costs.append(cost)
        self.integer.append(integer)
        return len(self.costs) - 1

    def row(
        self,
        sense: Sense,
        bound: float,
        variables: Sequence[int],
        coefficients: Sequence[float],
    ) -> None:
        """Add ``sum coefficients * variables (sense) bound``; variables must be distinct."""
        self.rows.append(_Row(sense, bound, variables, coefficients))

    def solve(self, *, deadline: float, handover: Handover = Handover.PULP) -> LpResult:
        """Optimum, or the best found by ``deadline`` (a `time.monotonic` instant)."""
        start = time.monotonic()
        run = _PulpRun(self) if handover is Handover.PULP else _ArrayRun(self)
        relaxed = self._result(run, start=start, deadline=deadline, integral=False)
        stopped = relaxed.termination in (Termination.INFEASIBLE, Termination.TIME_LIMIT)
        if stopped or relaxed.relaxation_integral:
            return relaxed
        result = self._result(run, start=start, deadline=deadline, integral=True)
        return _with_relaxation(result, relaxed)

    def _result(
        self, run: _PulpRun | _ArrayRun, *, start: float, deadline: float, integral: bool
    ) -> LpResult:
        if time.monotonic() >= deadline:
            return _unsolved(Termination.TIME_LIMIT, time.monotonic() - start)
        with _silent_stdout():
            highs, run_time = run(deadline=deadline, integral=integral)
        build_time = time.monotonic() - start - run_time
        termination = _TERMINATIONS.get(highs.getModelStatus().name, Termination.FAILED)
        info = highs.getInfo()
        has_solution = int(info.primal_solution_status) == _FEASIBLE
        if termination is Termination.INFEASIBLE:
            has_solution = False
        if not integral and termination is not Termination.OPTIMAL:
            has_solution = False
        if not has_solution:
            return _unsolved(termination, build_time, run_time)
        # Columns are in order of creation: see the names that `_PulpRun` gives.
        values = tuple(highs.getSolution().col_value)
        objective = float(info.objective_function_value)
        return LpResult(
            termination=termination,
            has_solution=True,
            objective=objective,
            bound=float(info.mip_dual_bound) if integral else objective,
            values=values,
            relaxation_integral=not integral and self._is_integral(values),
            build_time=build_time,
            solve_time=run_time,
        )

    def _is_integral(self, values: Sequence[float]) -> bool:
        return all(
            abs(value - round(value)) <= _INTEGRALITY
            for value, integer in zip(values, self.integer, strict=True)
            if integer
        )


_FEASIBLE = 2
_TERMINATIONS = {
    "kOptimal": Termination.OPTIMAL,
    "kInfeasible": Termination.INFEASIBLE,
    # Every variable is bounded, so such a program is infeasible.
    "kUnboundedOrInfeasible": Termination.INFEASIBLE,
    "kTimeLimit": Termination.TIME_LIMIT,
    "kInterrupt": Termination.TIME_LIMIT,
}


_Options = dict[str, int | float | str]
_OPTIONS: _Options = {"threads": 1, "random_seed": 0, "mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
# On the relaxation of a Llama block presolve takes 4 of 7 ms and finds little.
_RELAXATION_OPTIONS: _Options = {**_OPTIONS, "presolve": "off"}


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
        super().__init__(mip=mip, msg=False, **(_OPTIONS if mip else _RELAXATION_OPTIONS))
        self.deadline = deadline
        self.run_time = 0.0

    def callSolver(self, lp: Any) -> None:
        self.run_time = _timed_run(lp.solverModel, self.deadline)


class _ArrayRun:
    """Runs a model that HiGHS gets as arrays: the same program without PuLP's objects."""

    def __init__(self, model: LpModel) -> None:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(model.costs), len(model.rows)
        lp.col_cost_ = np.array(model.costs)
        lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
        bounds = np.array([row.bound for row in model.rows])
        senses = np.array([row.sense.value for row in model.rows])
        lp.row_lower_ = np.where(senses == Sense.AT_MOST.value, -highspy.kHighsInf, bounds)
        lp.row_upper_ = np.where(senses == Sense.AT_LEAST.value, highspy.kHighsInf, bounds)
        lengths = [len(row.variables) for row in model.rows]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *lengths])
        lp.a_matrix_.index_ = np.array([v for row in model.rows for v in row.variables])
        lp.a_matrix_.value_ = np.array([c for row in model.rows for c in row.coefficients])
        self._lp = lp
        kinds = highspy.HighsVarType
        self._kinds = [kinds.kInteger if i else kinds.kContinuous for i in model.integer]

    def __call__(self, *, deadline: float, integral: bool) -> tuple[Any, float]:
        """The HiGHS object after its run, and the seconds of that."""
        highs = highspy.Highs()  # type: ignore[no-untyped-call, unused-ignore]
        highs.setOptionValue("output_flag", False)
        options = _OPTIONS if integral else _RELAXATION_OPTIONS
        for name, value in options.items():
            highs.setOptionValue(name, value)
        if integral:
            self._lp.integrality_ = self._kinds
        highs.passModel(self._lp)
        return highs, _timed_run(highs, deadline)


def _timed_run(highs: Any, deadline: float) -> float:
    start = time.monotonic()
    highs.setOptionValue("time_limit", max(1e-3, deadline - start))
    highs.run()
    return time.monotonic() - start


def _expression(terms: list[tuple[Any, float]]) -> Any:
    if _LEGACY:
        return pulp.LpAffineExpression(terms)
    return pulp.LpAffineExpression.from_list(terms)


def _constraint(terms: list[tuple[Any, float]], row: _Row) -> Any:
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


def _unsolved(termination: Termination, build_time: float, solve_time: float = 0.0) -> LpResult:
    return LpResult(
        termination=termination,
        has_solution=False,
        objective=0.0,
        bound=0.0,
        values=(),
        relaxation_integral=False,
        build_time=build_time,
        solve_time=solve_time,
    )


def _with_relaxation(result: LpResult, relaxed: LpResult) -> LpResult:
    return LpResult(
        termination=result.termination,
        has_solution=result.has_solution,
        objective=result.objective,
        bound=max((r.bound for r in (result, relaxed) if r.has_solution), default=0.0),
        values=result.values,
        relaxation_integral=False,
        build_time=result.build_time - relaxed.solve_time,
        solve_time=result.solve_time + relaxed.solve_time,
    )


@contextmanager
def _silent_stdout() -> Iterator[None]:
    # HiGHS prints a banner when it is created, before any option can silence it.
    try:
        saved = os.dup(1)
    except OSError:  # stdout is closed: nothing to protect
        yield
        return
    try:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
