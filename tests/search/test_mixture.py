"""Levels block by block: against every assignment, and bounds that know of memory."""

from __future__ import annotations

import itertools

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.solver.explore import BoundLevel, Searcher
from autoplan.solver.mixture import Mixture
from autoplan.solver.pricing import Overflow, Priced, Slower
from autoplan.solver.space import Configuration, configurations, parse_pins
from autoplan.solver.variants import pick_points
from tests.search.searchers import searcher_of

CLUSTER = load_cluster("4xh100")
LEVELS = tuple(Recompute)


def searcher_for(model: Captured, limit: int) -> Searcher:
    return searcher_of(model, CLUSTER, limit=limit)


def space(**pins: str) -> list[Configuration]:
    allowed = parse_pins(pins, 4, 8)
    return list(configurations(ranks=4, global_batch=8, max_stages=5, pins=allowed))


@pytest.fixture(scope="module")
def long_model() -> Captured:
    """A nanoGPT whose activations take more than its parameters."""
    source = load_model(
        "nanogpt",
        overrides={"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 64, "block_size": 512},
    )
    return capture(source, seq_len=512, dtype="bfloat16")


def every_assignment(searcher: Searcher, one: Configuration) -> list[Priced]:
    """Price of each way to give every block a level, whatever the memory."""
    graph = searcher.graph(one)
    points = [searcher.point(one, level=level) for level in LEVELS]
    found = []
    for picks in itertools.product(range(len(LEVELS)), repeat=len(graph.instances)):
        variant, point = pick_points(graph, points, picks)
        mixture = Mixture(variant, one, [point], CLUSTER, update=searcher.problem.update)
        priced = mixture.best(2**50)
        assert isinstance(priced, Priced)
        found.append(priced)
    return found


@pytest.mark.parametrize(
    "pins",
    [
        {"dp_replicate": "4", "tp": "1", "pp": "1", "micro_batch_size": "2"},
        {"dp_shard": "4", "zero": "3", "tp": "1", "pp": "1", "micro_batch_size": "2"},
    ],
    ids=str,
)
def test_a_mixture_is_the_best_of_all_assignments(
    long_model: Captured, pins: dict[str, str]
) -> None:
    free = searcher_for(long_model, 2**50)
    (one,) = space(**pins)
    assignments = every_assignment(free, one)
    peaks = sorted({priced.peak_memory for priced in assignments})
    alike = [priced for priced in assignments if len(set(priced.levels)) == 1]
    # The cut counts the largest temporary of a block wherever it is, so it may save a block too
    # many: at most one runs again that need not.
    none, full = (
        min(p.step_time for p in alike if p.levels[0] is lv) for lv in (LEVELS[0], LEVELS[-1])
    )
    one_block = (full - none) / len(alike[0].levels) * 1.5
    limits = peaks[:: len(peaks) // 8]
    optimal = mixed = 0
    for limit in limits:
        found = searcher_for(long_model, limit).result(one)
        best = min(p.step_time for p in assignments if p.peak_memory <= limit)
        assert isinstance(found, Priced)
        assert found.peak_memory <= limit
        assert best * (1 - 1e-9) <= found.step_time <= best + one_block, limit
        optimal += found.step_time <= best * (1 + 1e-9)
        mixed += len(set(found.levels)) > 1
    assert optimal >= 0.6 * len(limits)
    assert mixed > 4  # copies of one block rightly differ


def test_a_tighter_limit_is_never_faster_nor_a_mixture_slower_than_one_level(
    long_model: Captured,
) -> None:
    for one in space(micro_batch_size="2")[::4]:
        free = searcher_for(long_model, 2**50)
        alike = [free.mixed(one, [free.point(one, level=level)]) for level in LEVELS]
        peaks = [priced.peak_memory for priced in alike if isinstance(priced, Priced)]
        times = []
        for limit in sorted(peaks):
            found = searcher_for(long_model, limit).result(one)
            assert isinstance(found, Priced), (one, limit)
            fitting = [
                priced.step_time
                for priced in alike
                if isinstance(priced, Priced) and priced.peak_memory <= limit
            ]
            assert found.step_time <= min(fitting) * (1 + 1e-9), one
            times.append(found.step_time)
        assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(times)), one


@pytest.mark.parametrize("share", [pytest.param(0.7, marks=pytest.mark.slow), 0.9])
def test_bounds_hold_where_memory_is_short(small_model: Captured, share: float) -> None:
    free = searcher_for(small_model, 2**50)
    everything = space()
    peaks = sorted(r.peak_memory for r in map(free.result, everything) if isinstance(r, Priced))
    limit = int(share * peaks[len(peaks) // 2])
    searcher = searcher_for(small_model, limit)
    priced = 0
    for one in everything:
        result = searcher.result(one)
        if searcher.memory_needed(one) > limit:
            assert isinstance(result, Overflow), one
        if not isinstance(result, Priced):
            continue
        priced += 1
        for level in BoundLevel:
            assert searcher.bound(one, level) <= result.step_time * (1 + 1e-9), (one, level)
    assert priced > 5


def test_what_can_not_win_is_not_priced(small_model: Captured) -> None:
    searcher = searcher_for(small_model, 2**50)
    for one in space(tp="1"):
        slower = searcher.result(one, 0.0)
        assert isinstance(slower, Slower) and slower.bound > 0.0
        full = searcher.result(one)
        assert isinstance(full, Priced)
        assert slower.bound <= full.step_time * (1 + 1e-9)
