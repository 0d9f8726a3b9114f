"""Stage cuts against enumeration of every cut."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from autoplan.errors import UsageError
from autoplan.schedules import in_flight
from autoplan.solver.inter import ChainItem, cut_stages

Ranges = tuple[tuple[int, int], ...]


def _random_chain(rng: random.Random) -> list[ChainItem]:
    kinds = [
        ChainItem(
            forward=rng.uniform(0.1, 2),
            backward=rng.uniform(0.1, 4),
            static=rng.randint(0, 50),
            activation=rng.randint(0, 20),
            transient=rng.randint(0, 40),
            boundary=rng.randint(0, 8),
            send=rng.choice((0.0, rng.uniform(0, 0.5))),
            tied=rng.choice(((), (("embedding", 30),))),
        )
        for _ in range(rng.randint(1, 4))
    ]
    return [rng.choice(kinds) for _ in range(rng.randint(3, 9))]


def _cuts(count: int, stages: int) -> list[Ranges]:
    cuts = []
    for inner in itertools.combinations(range(1, count), stages - 1):
        edges = (0, *inner, count)
        cuts.append(tuple(itertools.pairwise(edges)))
    return cuts


def _seconds(items: list[ChainItem], ranges: Ranges, microbatches: int) -> float:
    times = [sum(i.forward + i.backward for i in items[a:b]) for a, b in ranges]
    sends = sum(items[b - 1].send for _, b in ranges[:-1])
    return sum(times) + (microbatches - 1) * max(times) + 2 * sends


def _peak(items: list[ChainItem], ranges: Ranges, flights: list[int], microbatches: int) -> int:
    peaks = []
    for (a, b), flight in zip(ranges, flights, strict=True):
        part = items[a:b]
        held = sum(item.static for item in part)
        held += sum({key: size for item in part for key, size in item.tied}.values())
        held += flight * sum(item.activation for item in part)
        if a > 0:
            held += microbatches * items[a - 1].boundary
        if b < len(items):
            held += (flight + microbatches) * part[-1].boundary
        peaks.append(held + max(item.transient for item in part))
    return max(peaks)


@pytest.mark.parametrize("seed", range(10))
def test_cut_is_the_best_of_all_cuts(seed: int) -> None:
    rng = random.Random(seed)
    kinds = {"fits": 0, "bound": 0, "none": 0}
    for _ in range(30):
        items = _random_chain(rng)
        stages = rng.randint(1, min(4, len(items)))
        microbatches = rng.randint(1, 12)
        schedule = rng.choice(("gpipe", "1f1b"))
        flights = [in_flight(schedule, s, stages, microbatches) for s in range(stages)]
        cuts = _cuts(len(items), stages)
        limit = rng.choice(
            sorted(_peak(items, c, flights, microbatches) for c in cuts)[:20]
        ) - rng.randint(0, 1)
        cut = cut_stages(
            items,
            stages=stages,
            microbatches=microbatches,
            in_flight=flights,
            memory_limit=limit,
        )
        assert cut.ranges in cuts
        assert cut.objective == pytest.approx(_seconds(items, cut.ranges, microbatches))
        assert cut.peak_memory == _peak(items, cut.ranges, flights, microbatches)
        fitting = [c for c in cuts if _peak(items, c, flights, microbatches) <= limit]
        if fitting:
            best = min(_seconds(items, c, microbatches) for c in fitting)
            assert cut.objective == pytest.approx(best, rel=1e-9)
            assert cut.shortfall == 0
            free = min(_seconds(items, c, microbatches) for c in cuts)
            kinds["bound" if free < best * (1 - 1e-9) else "fits"] += 1
        else:
            assert cut.peak_memory == min(_peak(items, c, flights, microbatches) for c in cuts)
            assert cut.shortfall == cut.peak_memory - limit > 0
            kinds["none"] += 1
    assert all(kinds.values()), kinds


def _block(**changes: float) -> ChainItem:
    fields = {
        "forward": 1.0,
        "backward": 2.0,
        "static": 100,
        "activation": 10,
        "transient": 5,
        "boundary": 1,
        "send": 0.001,
    }
    return ChainItem(**{**fields, **changes})  # type: ignore[arg-type]


def test_equal_blocks_are_cut_evenly_and_fast() -> None:
    items = [_block(forward=0.1, backward=0.1), *[_block()] * 128, _block(forward=2.0)]
    start = time.perf_counter()
    cut = cut_stages(
        items,
        stages=16,
        microbatches=64,
        in_flight=[in_flight("1f1b", s, 16, 64) for s in range(16)],
        memory_limit=10**9,
    )
    elapsed = time.perf_counter() - start
    lengths = [last - first for first, last in cut.ranges]
    assert max(lengths[1:-1]) <= 9
    assert elapsed < 1.0


def test_early_stages_get_fewer_blocks_when_activations_bind() -> None:
    items = [_block(activation=100, static=0)] * 8
    cut = cut_stages(items, stages=2, microbatches=2, in_flight=[2, 1], memory_limit=100 * 6 + 10)
    assert cut.shortfall == 0
    assert cut.ranges == ((0, 3), (3, 8))


def test_tied_parameter_counts_once_in_one_stage_and_in_each_of_two() -> None:
    tied = ChainItem(
        forward=1.0, backward=1.0, static=0, activation=0, transient=0, boundary=0, send=0.0,
        tied=(("weight", 70),),
    )  # fmt: skip
    one = cut_stages([tied, tied], stages=1, microbatches=1, in_flight=[1], memory_limit=100)
    assert one.peak_memory == 70
    two = cut_stages([tied, tied], stages=2, microbatches=1, in_flight=[1, 1], memory_limit=100)
    assert two.peak_memory == 70
    assert two.shortfall == 0


def test_more_stages_than_blocks_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="3 stages"):
        cut_stages([_block()] * 2, stages=3, microbatches=1, in_flight=[1] * 3, memory_limit=1)
