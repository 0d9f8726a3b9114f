"""Random chains, and every cut and choice of points of a small one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.schedules import SCHEDULES, check, in_flight
from autoplan.solver.chain import ChainItem, Point

Ranges = tuple[tuple[int, int], ...]

STAGES_PER_RANK = {"zbvzerobubble": 2, "dualpipev": 2, "loopedbfs": 2, "interleaved1f1b": 2,
                   "interleavedzerobubble": 2}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What `cut_stages` gets besides the memory limit."""

    items: tuple[ChainItem, ...]
    schedule: str
    stages: int
    microbatches: int
    flights: tuple[int, ...]
    turns: int = 0


def random_point(rng: random.Random) -> Point:
    return Point(
        forward=rng.uniform(0.1, 2),
        backward=rng.uniform(0.1, 4),
        static=rng.randint(0, 50),
        activation=rng.randint(0, 20),
        transient=rng.randint(0, 40),
    )


def random_items(rng: random.Random, *, points: int, most: int) -> tuple[ChainItem, ...]:
    """3 to ``most`` blocks of 1 to 4 kinds of 1 to ``points`` points each."""
    kinds = [
        ChainItem(
            points=tuple(random_point(rng) for _ in range(rng.randint(1, points))),
            boundary=rng.randint(0, 8),
            send=rng.choice((0.0, rng.uniform(0, 0.5))),
            tied=rng.choice(((), (("embedding", 30),))),
        )
        for _ in range(rng.randint(1, 4))
    ]
    return tuple(rng.choice(kinds) for _ in range(rng.randint(3, most)))


def random_case(rng: random.Random, *, points: int, most: int, schedule: str | None = None) -> Case:
    """A chain in 1 to 4 stages under a schedule, by default any, that takes its microbatches."""
    items = random_items(rng, points=points, most=most)
    schedule = schedule or rng.choice(SCHEDULES)
    stages = rng.randint(1, min(4, len(items)))
    each = STAGES_PER_RANK.get(schedule, 1)
    # The most microbatches that any schedule asks for is 2 a rank; multiples of ranks suit all.
    microbatches = stages * rng.randint(2, 4)
    check(schedule, stages, microbatches, each)
    return Case(
        items=items,
        schedule=schedule,
        stages=stages,
        microbatches=microbatches,
        flights=tuple(
            in_flight(schedule, rank, stages, microbatches, each) for rank in range(stages)
        ),
    )


def cuts(count: int, stages: int) -> Iterator[Ranges]:
    for inner in itertools.combinations(range(1, count), stages - 1):
        yield tuple(itertools.pairwise((0, *inner, count)))


def assignments(items: Sequence[ChainItem]) -> NDArray[np.int64]:
    """Every choice of points, [choice, item]."""
    return np.array(list(itertools.product(*(range(len(item.points)) for item in items))))


def outcomes(case: Case, ranges: Ranges, choices: NDArray[np.int64]) -> tuple[
    NDArray[np.float64], NDArray[np.int64]
]:  # fmt: skip
    """Objective in seconds and bytes of the fullest stage, of each of ``choices``."""
    items, microbatches = case.items, case.microbatches
    time, static, activation, transient = (
        np.stack(
            [
                np.array([getattr(p, field) for p in item.points])[choices[:, i]]
                for i, item in enumerate(items)
            ],
            axis=1,
        )
        for field in ("time", "static", "activation", "transient")
    )
    times, peaks = [], []
    for (a, b), flight in zip(ranges, case.flights, strict=True):
        fixed = sum({key: size for item in items[a:b] for key, size in item.tied}.values())
        if a > 0:
            fixed += microbatches * items[a - 1].boundary
        if b < len(items):
            fixed += (flight + microbatches) * items[b - 1].boundary
        held = static[:, a:b].sum(axis=1) + flight * activation[:, a:b].sum(axis=1)
        peaks.append(held + transient[:, a:b].max(axis=1) + fixed)
        times.append(time[:, a:b].sum(axis=1))
    sends = sum(items[b - 1].send for _, b in ranges[:-1])
    slowest = np.max(times, axis=0)
    turns = case.turns or microbatches
    return np.sum(times, axis=0) + (turns - 1) * slowest + 2 * sends, np.max(peaks, axis=0)


def every_outcome(case: Case) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Objective and peak of every cut with every choice."""
    choices = assignments(case.items)
    found = [outcomes(case, ranges, choices) for ranges in cuts(len(case.items), case.stages)]
    return (
        np.concatenate([seconds for seconds, _ in found]),
        np.concatenate([peak for _, peak in found]),
    )
