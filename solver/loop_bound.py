"""A lower bound on the step of ranks that go round through several stages.

With loops of p ranks, stage s is on rank s mod p. What a rank does at its stages from s on, forward
and backward, starts when the first microbatch has passed the s stages before, and ends before its
gradient has gone back through them. So for every stage s of t_s seconds, both passes,

    T >= m (t_s + t_{s+p} + t_{s+2p} + ...) + sum_{j<s} t_j

and the least T over all t that sum to 1 is a factor of what a microbatch takes. With one stage a
rank that is `bounds.pipeline_bound`. It holds where backwards are whole.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from autoplan.solver.highs import RepeatedLp
from autoplan.solver.linear import LpModel, Sense

__all__ = ["loop_factor"]

# HiGHS lets a row be violated by 1e-7.
_TOLERANCE = 1e-5


@lru_cache(maxsize=4096)
def loop_factor(ranks: int, stages_per_rank: int, microbatches: int) -> float:
    """Seconds that a step takes at least, for each second of a microbatch through all stages.

    >>> round(loop_factor(2, 1, 4), 3)  # 1 / (1 - (1 - 1/4)^2)
    2.286
    """
    stages = ranks * stages_per_rank
    model = LpModel()
    # In units in which no variable is above 1: a step is no longer than all work in turn.
    step = model.variable(cost=1.0)
    shares = [model.variable() for _ in range(stages)]
    model.row(Sense.EQUAL, 1.0, shares, [1.0] * stages)
    for stage in range(stages):
        weights = [float(other < stage) for other in range(stages)]
        for own in range(stage, stages, ranks):
            weights[own] = float(microbatches)
        model.row(Sense.AT_MOST, 0.0, [*shares, step], [*weights, -float(microbatches)])
    result = RepeatedLp(model).solve(np.array(model.costs), deadline=math.inf)
    if not result.has_solution:
        return microbatches / ranks
    return result.objective * microbatches * (1 - _TOLERANCE)
