"""HiGHS: its options, what its answers mean, and programs that it gets as arrays.

A `RepeatedLp` is asked for one optimum after the other, at costs that differ. It keeps the
arrays and the basis that is optimal at the costs of the model, and starts each time from that
basis: so an answer depends on the costs only, not on what was asked before, which could decide
between equal optima. A warm start from the answer before is no faster (Llama's block on 8
ranks: 22 iterations against 32, of 196 without a start). One HiGHS object serves all programs:
handing a program over takes a tenth of a solve, and keeps none of its factors.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import highspy
import numpy as np

from autoplan.solver.linear import Costs, LpModel, LpResult, Sense, Termination, unsolved

__all__ = ["OPTIONS", "RELAXATION_OPTIONS", "RepeatedLp", "optimum", "silent_stdout", "timed_run"]

Options = dict[str, int | float | str]

OPTIONS: Options = {"threads": 1, "random_seed": 0, "mip_rel_gap": 0.0, "mip_abs_gap": 0.0}

# On the relaxation of a Llama block presolve takes 4 of 7 ms and finds little.
RELAXATION_OPTIONS: Options = {**OPTIONS, "presolve": "off"}

_FEASIBLE = 2
_TERMINATIONS = {
    "kOptimal": Termination.OPTIMAL,
    "kInfeasible": Termination.INFEASIBLE,
    # Every variable is bounded, so such a program is infeasible.
    "kUnboundedOrInfeasible": Termination.INFEASIBLE,
    "kTimeLimit": Termination.TIME_LIMIT,
    "kInterrupt": Termination.TIME_LIMIT,
}


def optimum(
    model: LpModel, run: Callable[[bool], tuple[Any, float]], *, deadline: float
) -> LpResult:
    """Optimum of a program: of its relaxation, and by branching only where that is fractional.

    ``run`` solves it, with or without integrality, and returns the HiGHS object and seconds.
    """
    relaxed = _result(model, run, deadline=deadline, integral=False)
    stopped = relaxed.termination in (Termination.INFEASIBLE, Termination.TIME_LIMIT)
    if stopped or relaxed.relaxation_integral:
        return relaxed
    result = _result(model, run, deadline=deadline, integral=True)
    return replace(
        result,
        bound=max((r.bound for r in (result, relaxed) if r.has_solution), default=0.0),
        build_time=relaxed.build_time + result.build_time,
        solve_time=relaxed.solve_time + result.solve_time,
    )


def _result(
    model: LpModel,
    run: Callable[[bool], tuple[Any, float]],
    *,
    deadline: float,
    integral: bool,
) -> LpResult:
    start = time.monotonic()
    if start >= deadline:
        return unsolved(Termination.TIME_LIMIT, 0.0)
    highs, run_time = run(integral)
    build_time = time.monotonic() - start - run_time
    termination = _TERMINATIONS.get(highs.getModelStatus().name, Termination.FAILED)
    info = highs.getInfo()
    has_solution = int(info.primal_solution_status) == _FEASIBLE
    if termination is Termination.INFEASIBLE:
        has_solution = False
    if not integral and termination is not Termination.OPTIMAL:
        has_solution = False
    if not has_solution:
        return unsolved(termination, build_time, run_time)
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    objective = float(info.objective_function_value)
    answered = not integral and model.is_integral(values)
    return LpResult(
        termination=termination,
        has_solution=True,
        objective=objective,
        bound=float(info.mip_dual_bound) if integral else objective,
        values=values,
        reduced_costs=np.array(solution.col_dual) if answered else np.empty(0),
        relaxation_integral=answered,
        build_time=build_time,
        solve_time=run_time,
    )


class RepeatedLp:
    """A program to solve at one vector of costs after the other."""

    def __init__(self, model: LpModel) -> None:
        self._model = model
        self._lp = _arrays(model)
        kinds = highspy.HighsVarType
        self._kinds = [kinds.kInteger if i else kinds.kContinuous for i in model.integer]
        self._basis: Any = None

    def solve(self, costs: Costs, *, deadline: float) -> LpResult:
        """Optimum at these costs, or the best by ``deadline`` (a `time.monotonic` instant)."""
        if self._basis is None:
            self._find_basis(deadline)

        def run(integral: bool) -> tuple[Any, float]:
            self._lp.col_cost_ = costs
            return self._run(deadline, integral=integral)

        return optimum(self._model, run, deadline=deadline)

    def relaxation(self, costs: Costs, *, deadline: float) -> float | None:
        """Optimum of the relaxation at these costs; None where there is none by ``deadline``."""
        if self._basis is None:
            self._find_basis(deadline)
        if time.monotonic() >= deadline:
            return None
        self._lp.col_cost_ = costs
        highs, _ = self._run(deadline, integral=False)
        if highs.getModelStatus().name != "kOptimal":
            return None
        return float(highs.getInfo().objective_function_value)

    def _find_basis(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            return
        self._lp.col_cost_ = np.array(self._model.costs)
        highs, _ = self._run(deadline, integral=False)
        if highs.getModelStatus().name == "kOptimal":
            self._basis = highs.getBasis()

    def _run(self, deadline: float, *, integral: bool) -> tuple[Any, float]:
        highs = _highs(integral)
        self._lp.integrality_ = self._kinds if integral else []
        highs.passModel(self._lp)
        if self._basis is not None and not integral:
            highs.setBasis(self._basis)
        return highs, timed_run(highs, deadline, integral=integral)


@functools.cache
def _highs(integral: bool) -> Any:
    with silent_stdout():
        highs = highspy.Highs()  # type: ignore[no-untyped-call, unused-ignore]
    highs.setOptionValue("output_flag", False)
    for name, value in (OPTIONS if integral else RELAXATION_OPTIONS).items():
        highs.setOptionValue(name, value)
    return highs


def timed_run(highs: Any, deadline: float, *, integral: bool) -> float:
    """Run until ``deadline`` at most; seconds it took."""
    start = time.monotonic()
    limit = max(1e-3, deadline - start)
    # HiGHS times a relaxation from the object's first run on, a branching from its own start.
    highs.setOptionValue("time_limit", limit if integral else limit + highs.getRunTime())
    highs.run()
    return time.monotonic() - start


@contextmanager
def silent_stdout() -> Iterator[None]:
    """Keep what HiGHS prints from the caller's stdout.

    It prints a banner when it is created, before any option can silence it.
    """
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


def _arrays(model: LpModel) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.costs), len(model.bounds)
    lp.col_cost_ = np.array(model.costs)
    lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
    free_below = [sense is Sense.AT_MOST for sense in model.senses]
    free_above = [sense is Sense.AT_LEAST for sense in model.senses]
    lp.row_lower_ = np.where(free_below, -highspy.kHighsInf, model.bounds)
    lp.row_upper_ = np.where(free_above, highspy.kHighsInf, model.bounds)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(model.starts)
    lp.a_matrix_.index_ = np.array(model.variables)
    lp.a_matrix_.value_ = np.array(model.coefficients)
    return lp
