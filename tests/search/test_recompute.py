"""The least recompute that memory forces, against a linear program and whole assignments."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from autoplan.solver.recompute import LevelChoice, least_seconds, room_of_stages


def random_choices(rng: random.Random) -> list[LevelChoice]:
    return [
        LevelChoice(
            rng.randint(1, 3),
            [(rng.uniform(1, 3), rng.randint(1, 40)) for _ in range(rng.randint(1, 3))],
        )
        for _ in range(rng.randint(1, 3))
    ]


def whole_assignments(choices: list[LevelChoice]) -> list[tuple[float, int]]:
    """Seconds and bytes of every way to give each copy a level."""
    copies = [c.options for c in choices for _ in range(c.copies)]
    return [
        (sum(time for time, _ in picks), sum(size for _, size in picks))
        for picks in itertools.product(*copies)
    ]


def test_relaxation_is_below_every_assignment_and_the_dual_meets_it() -> None:
    rng = random.Random(3)
    for _ in range(300):
        choices = random_choices(rng)
        points = whole_assignments(choices)
        room = rng.uniform(0, 1.2 * max(size for _, size in points))
        found = least_seconds(choices, room)
        fitting = [time for time, size in points if size <= room]
        if fitting:
            assert found <= min(fitting) * (1 + 1e-12)
        if min(size for _, size in points) > room:
            assert found == math.inf
            continue
        # Strong duality: the best Lagrangian bound over all prices of a byte is the relaxation.
        prices = {0.0} | {
            (t2 - t1) / (s1 - s2)
            for choice in choices
            for t1, s1 in choice.options
            for t2, s2 in choice.options
            if s1 > s2
        }
        dual = max(
            sum(choice.copies * min(t + price * s for t, s in choice.options) for choice in choices)
            - price * room
            for price in prices
            if price >= 0
        )
        assert found == pytest.approx(dual, rel=1e-9)


def test_room_of_stages_is_the_most_that_any_split_of_the_state_leaves() -> None:
    rng = random.Random(5)
    for _ in range(200):
        flights = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
        limit, state = rng.uniform(1, 10), rng.uniform(0, 20)
        room = room_of_stages(limit, state, flights)
        if state > limit * len(flights):
            assert room < 0
            continue
        for _ in range(20):
            parts = [rng.random() for _ in flights]
            scale = state / sum(parts)
            held = [part * scale for part in parts]
            if max(held) <= limit:
                left = sum((limit - h) / f for h, f in zip(held, flights, strict=True))
                assert left <= room * (1 + 1e-9)
