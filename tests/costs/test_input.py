"""The input ceiling against a linear-programming solver, and the step time it allows."""

from __future__ import annotations

import random

import highspy
import pytest

from autoplan.costs.input import InputStage, input_rate, input_step_time

STAGES = [InputStage(rate=rate) for rate in (2.0, 4.0, 50.0)]


def test_published_example_is_cpu_bound_then_disk_bound() -> None:
    fast = input_rate(STAGES, cores=8, sample_size=15e6, disk_bandwidth=200e6)
    assert fast == pytest.approx(8 / (1 / 2 + 1 / 4 + 1 / 50))
    assert round(fast, 4) == 10.3896
    slow = input_rate(STAGES, cores=8, sample_size=15e6, disk_bandwidth=100e6)
    assert round(slow, 3) == 6.667


def test_closed_form_is_the_optimum_of_the_linear_program() -> None:
    draw = random.Random(0)
    for _ in range(50):
        stages = [
            InputStage(rate=draw.uniform(0.5, 50), sequential=draw.random() < 0.3)
            for _ in range(draw.randint(1, 5))
        ]
        cores, size, disk = draw.randint(1, 16), draw.uniform(1, 20), draw.uniform(20, 200)
        model = highspy.Highs()
        model.setOptionValue("threads", 1)  # as the solver does: all of a process must agree
        model.silent()
        rate_of_all = model.addVariable(lb=0)
        shares = [model.addVariable(lb=0, ub=1 if s.sequential else cores) for s in stages]
        for stage, share in zip(stages, shares, strict=True):
            model.addConstr(rate_of_all <= stage.rate * share)
        model.addConstr(sum(shares) <= cores)
        model.addConstr(size * rate_of_all <= disk)
        model.maximize(rate_of_all)
        rate = input_rate(stages, cores=cores, sample_size=size, disk_bandwidth=disk)
        assert rate == pytest.approx(model.getObjectiveValue(), rel=1e-7)


def test_ranks_that_share_samples_read_them_again() -> None:
    alone = input_step_time(100.0, global_batch=64, dp=8, ranks_per_node=8)
    shared = input_step_time(100.0, global_batch=64, dp=2, ranks_per_node=8)
    nodes = input_step_time(100.0, global_batch=64, dp=16, ranks_per_node=8)
    assert (alone, shared, nodes) == (0.64, 2.56, 0.32)
