"""Cuts of chains of dozens of blocks against plain dynamic programming over bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplan.solver.chain import ChainItem, Point
from autoplan.solver.inter import cut_stages
from tests.solver.chains import Case

Floats = NDArray[np.float64]


def _least_times(case: Case, limit: int) -> Floats:
    """Least seconds [stage, first, last] of items first..last-1, infinite where none fit."""
    count = len(case.items)
    least = np.full((case.stages, count + 1, count + 1), np.inf)
    transients = {p.transient for item in case.items for p in item.points}
    known: dict[int, Floats] = {}
    for stage, flight in enumerate(case.flights):
        if flight in known:
            least[stage] = known[flight]
            continue
        for transient in transients:
            for first in range(count):
                _extend(case, flight, limit, transient, first, least[stage, first])
        known[flight] = least[stage]
    return least


def _extend(case: Case, flight: int, limit: int, transient: int, first: int, least: Floats) -> None:
    """Lower ``least`` [last] by the choices with transients of at most ``transient``."""
    items, microbatches = case.items, case.microbatches
    # Seconds for exactly so many bytes or fewer.
    time = np.zeros(limit + 1)
    tied: dict[str, int] = {}
    for last in range(first + 1, len(items) + 1):
        item = items[last - 1]
        tied.update(item.tied)
        before, time = time, np.full(limit + 1, np.inf)
        for point in item.points:
            weight = point.static + flight * point.activation
            if point.transient <= transient and weight <= limit:
                np.minimum(
                    time[weight:], before[: limit + 1 - weight] + point.time, out=time[weight:]
                )
        room = limit - transient - sum(tied.values())
        room -= microbatches * items[first - 1].boundary if first else 0
        room -= (microbatches + flight) * item.boundary if last < len(items) else 0
        if room >= 0:
            least[last] = min(least[last], time[room])


def _least_objective(case: Case, times: Floats) -> float:
    count, most = len(case.items), case.microbatches - 1
    crossing = np.array([0.0, *(2 * item.send for item in case.items[:-1]), 0.0])
    best = np.inf
    for slowest in [*np.unique(times[np.isfinite(times)]), np.inf]:
        rest = np.full(count + 1, np.inf)
        rest[count] = 0.0
        for stage in reversed(range(case.stages)):
            allowed = np.where(times[stage] <= slowest * (1 + 1e-12), times[stage], np.inf)
            rest = (allowed + crossing + rest).min(axis=1)
        # The last, without a limit, only serves one microbatch.
        if np.isfinite(rest[0]):
            best = min(best, rest[0] + (most * slowest if most else 0.0))
    return float(best)


def _items(rng: random.Random, count: int, kinds: int) -> tuple[ChainItem, ...]:
    def item() -> ChainItem:
        time = rng.uniform(1, 3)
        points = tuple(
            Point(
                forward=time * rng.uniform(1, 1.1 + 0.2 * rank),
                backward=2 * time,
                static=rng.randint(2, 6),
                activation=rng.randint(0, 6) // (1 + rank),
                transient=rng.choice((2, 5, 9)),
            )
            for rank in range(rng.randint(1, 3))
        )
        tied = (("embedding", 7),) if rng.random() < 0.1 else ()
        return ChainItem(
            points=points, boundary=rng.randint(0, 1), send=rng.uniform(0, 0.1), tied=tied
        )

    made = [item() for _ in range(kinds)]
    return tuple(rng.choice(made) for _ in range(count))


@pytest.mark.parametrize("seed", range(16))
def test_long_chain_is_cut_as_by_dynamic_programming(seed: int) -> None:
    rng = random.Random(seed)
    count, stages = rng.randint(24, 36), rng.randint(2, 7)
    microbatches = rng.choice((1, 2, stages, 24))
    gpipe = rng.random() < 0.4
    case = Case(
        items=_items(rng, count, rng.choice((2, 3, 30))),
        schedule="",
        stages=stages,
        microbatches=microbatches,
        flights=tuple(
            microbatches if gpipe else min(microbatches, stages - s) for s in range(stages)
        ),
    )

    def cut(limit: int) -> tuple[float, int]:
        found = cut_stages(
            case.items, stages=stages, microbatches=microbatches,
            in_flight=case.flights, memory_limit=limit,
        )  # fmt: skip
        return found.objective, found.peak_memory

    least, most = cut(0)[1], cut(10**9)[1]
    for limit in {least, *(rng.randint(least, most) for _ in range(2))}:
        objective, peak = cut(limit)
        assert peak <= limit
        assert objective == pytest.approx(
            _least_objective(case, _least_times(case, limit)), rel=1e-12
        )
    with_less = _least_times(case, least - 1)
    assert not np.isfinite(_least_objective(replace(case, microbatches=1), with_less))
