"""Mixes of one stage against enumeration of how many blocks take each point."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from autoplan.solver.chain import Point
from autoplan.solver.mixing import Mixer
from tests.solver.chains import random_point


def _numbers(blocks: int, points: int) -> Iterator[tuple[int, ...]]:
    """Every way to deal blocks out to points."""
    for bars in itertools.combinations(range(blocks + points - 1), points - 1):
        edges = (-1, *bars, blocks + points - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


def _bytes(
    classes: Sequence[Sequence[Point]], counts: Sequence[Sequence[int]], in_flight: int
) -> int:
    used = [
        (point, count)
        for points, row in zip(classes, counts, strict=True)
        for point, count in zip(points, row, strict=True)
        if count
    ]
    weight = sum(count * (p.static + in_flight * p.activation) for p, count in used)
    return weight + max(point.transient for point, _ in used)


def _seconds(classes: Sequence[Sequence[Point]], counts: Sequence[Sequence[int]]) -> float:
    return sum(
        count * point.time
        for points, row in zip(classes, counts, strict=True)
        for point, count in zip(points, row, strict=True)
    )


@pytest.mark.parametrize("seed", range(150))
def test_mix_is_the_fastest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice(((1, 4), (2, 3), (3, 2), (4, 2), (1, 3)))
    classes = [
        [random_point(rng) for _ in range(rng.randint(1, sizes[1]))] for _ in range(sizes[0])
    ]
    blocks = [rng.randint(0, 12 // sizes[0]) for _ in classes]
    blocks[0] += not any(blocks)
    flight = rng.randint(1, 5)
    mixes = list(
        itertools.product(*(_numbers(n, len(p)) for n, p in zip(blocks, classes, strict=True)))
    )
    needs = [_bytes(classes, mix, flight) for mix in mixes]
    times = [_seconds(classes, mix) for mix in mixes]
    mixer = Mixer(classes, flight)
    for limit in [min(needs) - 1, min(needs), *rng.sample(needs, min(8, len(needs)))]:
        best = min((t for t, n in zip(times, needs, strict=True) if n <= limit), default=None)
        found = mixer.mix(blocks, limit)
        if best is None:
            assert found is None
            continue
        assert found is not None
        assert found.time == found.bound == pytest.approx(best, rel=1e-12)
        assert found.time == pytest.approx(_seconds(classes, found.counts), rel=1e-12)
        assert [sum(row) for row in found.counts] == blocks
        assert _bytes(classes, found.counts, flight) <= limit


def test_a_larger_transient_may_be_worth_it_or_not() -> None:
    def point(forward: float, activation: int, transient: int) -> Point:
        return Point(
            forward=forward, backward=0.0, static=0, activation=activation, transient=transient
        )

    # Recompute keeps 1 of 10 bytes but needs 20 while it runs: of no use for one block.
    classes = [[point(1.0, 10, 2), point(1.5, 1, 20)]]
    mixer = Mixer(classes, 1)
    one = mixer.mix([1], 12)
    assert one is not None and one.counts == ((1, 0),)
    assert mixer.mix([1], 11) is None
    four = mixer.mix([4], 35)
    assert four is not None and four.counts == ((1, 3),)


def test_copies_in_the_hundreds_of_many_points_are_mixed() -> None:
    """Against dynamic programming over bytes, which here are few."""
    rng = random.Random(5)
    classes = [
        [
            Point(forward=rng.uniform(1, 3), backward=0.0, static=w, activation=0, transient=0)
            for w in range(1, 9)
        ]
        for _ in range(3)
    ]
    counts, limit = [300, 7, 31], 1700
    least = [0.0] * (limit + 1)
    for points, count in zip(classes, counts, strict=True):
        for _ in range(count):
            least = [
                min(
                    (least[room - p.static] + p.time for p in points if p.static <= room),
                    default=float("inf"),
                )
                for room in range(limit + 1)
            ]
    found = Mixer(classes, 3).mix(counts, limit)
    assert found is not None
    assert found.time == pytest.approx(least[limit], rel=1e-12)


def test_many_classes_that_save_as_much_for_a_byte_end_with_a_bound() -> None:
    rng = random.Random(2)
    classes = []
    for _ in range(30):
        size = rng.randint(10**6, 10**7)
        heavy = Point(forward=1.0, backward=0.0, static=size, activation=0, transient=0)
        light = Point(forward=1 + size * 1e-8, backward=0.0, static=0, activation=0, transient=0)
        classes.append([heavy, light])
    limit = sum(points[0].static for points in classes) // 2
    found = Mixer(classes, 1).mix([1] * 30, limit)
    assert found is not None
    relaxed = 30 + (sum(points[0].static for points in classes) - limit) * 1e-8
    assert found.bound == pytest.approx(relaxed)
    assert found.bound <= found.time <= found.bound * (1 + 1e-6)
    assert _bytes(classes, found.counts, 1) <= limit
