"""The adapter over PuLP and HiGHS against enumeration, limits and closed streams."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from autoplan.solver.highs import RepeatedLp
from autoplan.solver.linear import LpModel, LpResult, Sense, Termination
from autoplan.solver.lp import Handover, solve_lp

_HOLDS = {
    Sense.EQUAL: lambda left, right: abs(left - right) < 1e-9,
    Sense.AT_MOST: lambda left, right: left <= right + 1e-9,
    Sense.AT_LEAST: lambda left, right: left >= right - 1e-9,
}


def _solve(model: LpModel, seconds: float = 30.0, handover: Handover = Handover.PULP) -> LpResult:
    return solve_lp(model, deadline=time.monotonic() + seconds, handover=handover)


def _enumerate(model: LpModel) -> float | None:
    best = None
    for point in itertools.product((0, 1), repeat=len(model.costs)):
        if all(
            _HOLDS[row.sense](
                sum(c * point[v] for v, c in zip(row.variables, row.coefficients, strict=True)),
                row.bound,
            )
            for row in model.rows
        ):
            cost = sum(c * x for c, x in zip(model.costs, point, strict=True))
            best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("handover", Handover)
def test_random_programs_match_enumeration(handover: Handover) -> None:
    rng = random.Random(0)
    branched = infeasible = 0
    for _ in range(80):
        model = LpModel()
        size = rng.randint(3, 7)
        for _ in range(size):
            model.variable(rng.uniform(-2, 5), integer=True)
        for _ in range(rng.randint(1, 3)):
            model.row(
                rng.choice((Sense.AT_MOST, Sense.AT_LEAST)),
                rng.uniform(0, 4),
                tuple(range(size)),
                tuple(float(rng.randint(0, 4)) for _ in range(size)),
            )
        best = _enumerate(model)
        found = _solve(model, handover=handover)
        if best is None:
            assert found.termination is Termination.INFEASIBLE
            assert not found.has_solution and not found.values.size
            infeasible += 1
            continue
        assert found.termination is Termination.OPTIMAL
        assert found.objective == pytest.approx(best, abs=1e-7)
        assert found.bound <= found.objective + 1e-7
        assert all(min(abs(x), abs(x - 1)) < 1e-6 for x in found.values)
        branched += not found.relaxation_integral
    assert branched > 10 and infeasible > 3


@pytest.mark.parametrize("handover", Handover)
def test_values_keep_the_order_of_creation(handover: Handover) -> None:
    model = LpModel()
    for index in range(120):
        model.variable(-1.0 if index in (7, 11, 110) else 1.0, integer=True)
    model.row(Sense.AT_MOST, 120.0, tuple(range(120)), (1.0,) * 120)
    values = _solve(model, handover=handover).values
    assert [index for index, value in enumerate(values) if value > 0.5] == [7, 11, 110]


def test_relaxation_that_is_integral_needs_no_branching() -> None:
    model = LpModel()
    a, b = model.variable(1.0, integer=True), model.variable(2.0, integer=True)
    model.row(Sense.EQUAL, 1.0, (a, b), (1.0, 1.0))
    found = _solve(model)
    assert found.relaxation_integral
    assert found.values.tolist() == [1.0, 0.0]
    assert found.bound == found.objective == 1.0


def _hard_program(*, integer: bool = True) -> LpModel:
    """Market split: rows of random weights to be halved exactly, with slack at a price."""
    rng = random.Random(0)
    model = LpModel()
    picks = tuple(model.variable(integer=integer) for _ in range(60))
    for _ in range(6):
        weights = tuple(float(rng.randrange(100)) for _ in picks)
        over, under = model.variable(1.0), model.variable(1.0)
        model.row(
            Sense.EQUAL, sum(weights) // 2, (*picks, over, under), (*weights, -5000.0, 5000.0)
        )
    return model


@pytest.mark.parametrize("handover", Handover)
def test_time_limit_returns_the_best_so_far(handover: Handover) -> None:
    start = time.monotonic()
    found = _solve(_hard_program(), seconds=1.0, handover=handover)
    assert time.monotonic() - start < 5.0
    assert found.termination is Termination.TIME_LIMIT
    assert found.has_solution
    assert found.bound <= found.objective


def test_time_of_earlier_programs_does_not_count() -> None:
    program = RepeatedLp(_hard_program(integer=False))
    costs = np.ones(72)
    spent = 0.0
    while spent < 0.4:
        spent += program.solve(costs, deadline=time.monotonic() + 30.0).solve_time
    found = program.solve(costs, deadline=time.monotonic() + 0.1)
    assert found.termination is Termination.OPTIMAL


def test_no_time_left_gives_nothing() -> None:
    found = _solve(_hard_program(), seconds=-1.0)
    assert found.termination is Termination.TIME_LIMIT
    assert not found.has_solution


_SCRIPT = """
import os, sys, time
from autoplan.solver.linear import LpModel, Sense
from autoplan.solver.lp import Handover, solve_lp
if sys.argv[1] == "closed":
    os.close(1)
model = LpModel()
model.variable(1.0, integer=True)
model.row(Sense.AT_LEAST, 1.0, (0,), (1.0,))
for handover in Handover:
    found = solve_lp(model, deadline=time.monotonic() + 30, handover=handover)
    assert found.objective == 1.0
if sys.argv[1] == "open":
    print("done")
"""


@pytest.mark.parametrize(("stdout", "expected"), [("open", "done\n"), ("closed", "")])
def test_stdout_stays_the_callers(stdout: str, expected: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT, stdout],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == expected
