"""A lower bound on the step of a pipeline before its stages are cut.

Blocks are divided: x[s, c, p] is the share of class c that is at stage s and its point p, and b_s
the seconds that a microbatch has taken before stage s.

    min T   over   sum_{s, p} x[s, c, p] = 1                                    (C1, each class)
                   sum_{c, p} x weight[s, c, p] + least transient <= limit[s]   (C2, each stage)
                   b_{s+1} = b_s + sum_{c, p} x t[c, p]                         (C3, each stage)
                   m (b_{s+1} - b_s) + b_s + sum x once + 2 s send <= T         (C4, each stage)

C4 holds for every order in which a rank has one stage and whole backwards (GPipe, 1F1B): the
first microbatch reaches stage s through the forwards of those before it, and what stage s does
last, a backward, goes back through them. It is also at most the seconds that cuts minimise.
Where ranks have several stages, s are ranks, and only their work counts: neither b_s nor messages.

Blocks are whole, too: of the q that take longest some stage has ``ceil(q / stages)``, and runs
them for all microbatches. That counts where stages have few blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoplan.solver.chain import Point
from autoplan.solver.fronts import hull
from autoplan.solver.highs import RepeatedLp
from autoplan.solver.linear import LpModel, Sense, Termination
from autoplan.solver.sweep import SAME

__all__ = ["relaxed_bound"]

# HiGHS lets a row be violated by 1e-7 of its scale, a step or a stage's bytes.
_TOLERANCE = 1e-5


def relaxed_bound(
    classes: Sequence[Sequence[Point]],
    counts: Sequence[int],
    *,
    in_flight: Sequence[int],
    microbatches: int,
    limits: Sequence[int],
    send: float = 0.0,
    once: Sequence[float] = (),
    looped: bool = False,
) -> float:
    """Seconds that no step is below; infinite when no cut fits in memory.

    ``counts`` are blocks of each class. A stage of ``in_flight`` microbatches has ``limits`` bytes
    for its blocks, ``send`` is the least seconds of a message between stages. A block of a class
    takes ``once`` seconds more after the last microbatch. ``looped``: stages stand for ranks that
    have several.
    """
    ends = tuple(once) or (0.0,) * len(classes)
    blocks = list(zip(classes, counts, ends, strict=True))
    present = [(points, n, end) for points, n, end in blocks if n]
    fastest = [min(point.time for point in points) for points, n, _ in present for _ in range(n)]
    relaxed = _divided(present, in_flight, microbatches, limits, send, looped=looped)
    whole = microbatches * _longest_stage(fastest, len(in_flight))
    return max(relaxed, whole * (1 - SAME))


def _longest_stage(times: Sequence[float], stages: int) -> float:
    """Seconds that the longest stage takes for blocks of those times, at least."""
    descending = sorted(times, reverse=True)
    # One more block than k on each stage: some stage has k + 1 of them.
    firsts = range(0, len(times), stages)
    return max(sum(descending[q - q // stages : q + 1]) for q in firsts)


def _divided(
    present: Sequence[tuple[Sequence[Point], int, float]],
    in_flight: Sequence[int],
    microbatches: int,
    limits: Sequence[int],
    send: float,
    *,
    looped: bool,
) -> float:
    """Seconds of the linear program, less what its rows may be violated by."""
    transient = min(point.transient for points, _, _ in present for point in points)
    if min(limits) < transient:
        return math.inf
    hulls = {
        flight: [hull(points, flight) for points, _, _ in present] for flight in set(in_flight)
    }
    # Variables are in [0, 1]: seconds go by those of all blocks, each at its slowest.
    total = sum(n * max(point.time for point in points) for points, n, _ in present)
    total += sum(n * end for _, n, end in present) / microbatches
    most = microbatches * total + 2 * len(in_flight) * send
    model = LpModel()
    step = model.variable(cost=1.0)
    shares: list[list[int]] = [[] for _ in present]
    before = model.variable()
    model.row(Sense.EQUAL, 0.0, [before], [1.0])
    for stage, (flight, limit) in enumerate(zip(in_flight, limits, strict=True)):
        own, weights, times, ends = [], [], [], []
        for (_, count, end), corners, share in zip(present, hulls[flight], shares, strict=True):
            for option in corners:
                own.append(model.variable())
                share.append(own[-1])
                weights.append(count * option.weight)
                times.append(count * option.time / total)
                ends.append(count * end / total)
        largest = max(weights)
        if largest:
            room = (limit - transient) / largest
            model.row(Sense.AT_MOST, room, own, [weight / largest for weight in weights])
        after = model.variable()
        model.row(Sense.EQUAL, 0.0, [*own, before, after], [*times, 1.0, -1.0])
        model.row(
            Sense.AT_MOST,
            0.0 if looped else -2 * stage * send / total,
            [*own, after, before, step],
            [*ends, microbatches, (not looped) - microbatches, -most / total],
        )
        before = after
    for share in shares:
        model.row(Sense.EQUAL, 1.0, share, [1.0] * len(share))
    result = RepeatedLp(model).solve(np.array(model.costs), deadline=math.inf)
    if result.termination is Termination.INFEASIBLE:
        return math.inf
    return result.objective * most * (1 - _TOLERANCE) if result.has_solution else 0.0
