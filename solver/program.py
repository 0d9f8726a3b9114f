"""Questions about one choice problem, answered by its 0-1 program (see `problem` and `rows`).

Equal answers: after the solve, a descent over single nodes in order moves to the choice with
the lowest (objective, bytes held, position), so it can only improve the answer, and the same
question always gives the same one, whatever was asked before (see `highs`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.solver.descent import Descent
from autoplan.solver.highs import RepeatedLp
from autoplan.solver.linear import Costs, LpResult, Termination
from autoplan.solver.lp import Handover, solve_lp
from autoplan.solver.problem import Problem, Weights
from autoplan.solver.reduction import live_choices
from autoplan.solver.rows import ProgramRows
from autoplan.solver.support import Support

__all__ = ["Assignment", "ChoiceProgram"]

_COST_SCALE = 1e5
# Bytes for each variable and coefficient: 198 on average over 203 programs of Llama-3-8B.
_ENTRY = 200
_EQUAL = 1e-3
# HiGHS's relaxations may be off by 1e-7 of the largest cost; objectives sum some of those.
_TOLERANCE = 1e-6

# Of all seconds of a program, what its bytes of each kind are worth where answers start from.
_USUAL_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Choice of each node (empty when there is none), with objective and proven bound."""

    choices: tuple[int, ...]
    objective: float
    bound: float
    termination: Termination
    relaxation_integral: bool
    variables: int
    rows: int
    build_time: float
    solve_time: float


def _without_answer(termination: Termination) -> Assignment:
    return Assignment(
        choices=(),
        objective=0.0,
        bound=0.0,
        termination=termination,
        relaxation_integral=False,
        variables=0,
        rows=0,
        build_time=0.0,
        solve_time=0.0,
    )


class ChoiceProgram:
    """The 0-1 program of a problem, for any number of questions."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._live = live_choices(problem)
        self._is_open = all(self._live) and any(len(choices) > 1 for choices in self._live)
        if self._is_open:
            self._rows = ProgramRows(problem, self._live)
            self._prices = self._rows.prices()
            self._rows.model.costs = self._costs(self._usual_weights())[1].tolist()
            self._descent = Descent(problem)
            self._ties = Support(self._rows.model)
            self._lp = RepeatedLp(self._rows.model)

    def solve(
        self, weights: Weights, *, deadline: float, handover: Handover = Handover.ARRAYS
    ) -> Assignment:
        """Best assignment at these weights; ``deadline`` is a `time.monotonic` instant."""
        start = time.monotonic()
        if not self._is_open:
            return self._only_answer(weights)
        scale, costs = self._costs(weights)
        if handover is Handover.ARRAYS:
            result = self._lp.solve(costs, deadline=deadline)
        else:
            model = self._rows.model.priced(costs)
            result = solve_lp(model, deadline=deadline, handover=handover)
        build_time = time.monotonic() - start - result.solve_time
        if not result.has_solution:
            return _without_answer(result.termination)
        choices = self._rows.assignment(result.values)
        objective = self._problem.cost(choices, weights)
        canonical = self._descent.descend(
            choices, weights, among=self._open(result), objective=objective
        )
        if canonical != choices:
            choices, objective = canonical, self._problem.cost(canonical, weights)
        optimal = result.termination is Termination.OPTIMAL
        bound = objective if optimal else min(objective, result.bound / scale)
        return Assignment(
            choices=choices,
            objective=objective,
            bound=bound,
            termination=result.termination,
            relaxation_integral=result.relaxation_integral,
            variables=len(costs),
            rows=len(self._rows.model.bounds),
            build_time=build_time,
            solve_time=result.solve_time,
        )

    def bound(self, weights: Weights, *, deadline: float) -> float:
        """Objective that no assignment is below: that of the relaxation, 0 when time is up."""
        if not self._is_open:
            return self._only_answer(weights).bound
        scale, costs = self._costs(weights)
        least = self._lp.relaxation(costs, deadline=deadline)
        return 0.0 if least is None else least / scale * (1 - _TOLERANCE)

    def _open(self, result: LpResult) -> Sequence[Sequence[int]]:
        """Choices that an optimum may have: no others can follow from one by single moves."""
        if not result.relaxation_integral:
            return self._live
        return self._rows.choices(self._ties.reachable(result.reduced_costs <= _EQUAL))

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        if not self._is_open:
            return 0
        model = self._rows.model
        return _ENTRY * (len(model.costs) + len(model.variables))

    def _costs(self, weights: Weights) -> tuple[float, Costs]:
        """Costs of the variables, well above the solver's absolute tolerances, and the factor."""
        seconds, stored, summed, held = self._prices
        placed = seconds + weights.stored * stored + weights.summed * summed
        largest = float(np.max(np.abs(placed)))
        scale = _COST_SCALE / largest if largest else 1.0
        return scale, scale * (placed + weights.held * held)

    def _usual_weights(self) -> Weights:
        """Weights of which only their order of magnitude matters."""
        seconds, *kinds = self._prices.sum(axis=1).tolist()
        return Weights(*(_USUAL_SHARE * seconds / size if size else 0.0 for size in kinds))

    def _only_answer(self, weights: Weights) -> Assignment:
        if not all(self._live):
            return _without_answer(Termination.INFEASIBLE)
        choices = tuple(only for (only,) in self._live)
        limit = self._problem.memory_limit
        if limit is not None and self._problem.memory(choices) > limit:
            return _without_answer(Termination.INFEASIBLE)
        objective = self._problem.cost(choices, weights)
        return replace(
            _without_answer(Termination.OPTIMAL),
            choices=choices,
            objective=objective,
            bound=objective,
            relaxation_integral=True,
        )
