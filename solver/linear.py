"""Linear programs with 0-1 variables as plain numbers, and what a solver answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

__all__ = ["Costs", "LpModel", "LpResult", "Row", "Sense", "Termination", "unsolved"]

Costs = npt.NDArray[np.float64]
"""Cost of each variable."""

_INTEGRALITY = 1e-6


class Sense(StrEnum):
    """Relation of a row to its right-hand side."""

    EQUAL = "="
    AT_MOST = "<="
    AT_LEAST = ">="


class Termination(StrEnum):
    """Why the solver stopped; whether it has a solution is a separate matter."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """``sum coefficients * variables (sense) bound``."""

    sense: Sense
    bound: float
    variables: Sequence[int]
    coefficients: Sequence[float]


class LpModel:
    """A minimisation over variables in [0, 1], some of them integer; rows one after the other."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.integer: list[bool] = []
        self.senses: list[Sense] = []
        self.bounds: list[float] = []
        self.starts: list[int] = [0]
        self.variables: list[int] = []
        self.coefficients: list[float] = []

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
        self.senses.append(sense)
        self.bounds.append(bound)
        self.variables += variables
        self.coefficients += coefficients
        self.starts.append(len(self.variables))

    @property
    def rows(self) -> Iterator[Row]:
        """The rows, one by one."""
        for row, (sense, bound) in enumerate(zip(self.senses, self.bounds, strict=True)):
            entries = slice(self.starts[row], self.starts[row + 1])
            yield Row(sense, bound, self.variables[entries], self.coefficients[entries])

    def priced(self, costs: Costs) -> LpModel:
        """The same program at other costs."""
        model = copy.copy(self)
        model.costs = costs.tolist()
        return model

    def is_integral(self, values: Costs) -> bool:
        """Whether every integer variable has an integer value, up to a tolerance."""
        picked = values[np.array(self.integer, dtype=bool)]
        return bool(np.all(np.abs(picked - np.round(picked)) <= _INTEGRALITY))


@dataclass(frozen=True, slots=True, kw_only=True)
class LpResult:
    """Answer to a program: ``values`` by variable, empty without a solution.

    ``bound`` is a proven lower bound of the optimum. ``relaxation_integral`` says that the
    linear relaxation was already the answer; only then are there ``reduced_costs``: the optimum
    grows by at least that much with each unit of a variable that is 0 in it. ``build_time`` and
    ``solve_time`` are seconds for the hand-over and for HiGHS itself.
    """

    termination: Termination
    has_solution: bool
    objective: float
    bound: float
    values: Costs
    reduced_costs: Costs
    relaxation_integral: bool
    build_time: float
    solve_time: float


def unsolved(termination: Termination, build_time: float, solve_time: float = 0.0) -> LpResult:
    """The answer when there is no solution."""
    return LpResult(
        termination=termination,
        has_solution=False,
        objective=0.0,
        bound=0.0,
        values=np.empty(0),
        reduced_costs=np.empty(0),
        relaxation_integral=False,
        build_time=build_time,
        solve_time=solve_time,
    )
