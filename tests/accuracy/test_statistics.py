"""Statistics against worked values."""

import math
import random
import statistics

import pytest

from benchmarks.accuracy.statistics import (
    attainable_kendall,
    clear_kendall,
    errors,
    kendall,
    repeat_spread,
    spearman,
    sweeps,
)


def test_errors():
    found = errors([0.1, -0.3, 0.2])
    assert (found.rows, found.median) == (3, 0.2)
    assert found.mean == pytest.approx(0.2)
    assert found.bias == pytest.approx(0.0, abs=1e-12)


def test_rank_correlations():
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert kendall([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    # One tie on the left: 5 untied pairs of 6, all in order.
    assert kendall([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(5 / (5 * 6) ** 0.5)
    assert spearman([1, 1, 2], [1, 1, 2]) == pytest.approx(1)


def test_small_sweeps_say_nothing():
    assert sweeps({"a": [1, 2, 3]}, {"a": [1, 2, 3]}) == {}
    found = sweeps({"a": [1, 2, 3, 4]}, {"a": [1, 2, 3, 5]})["a"]
    assert (found.rows, found.clear) == (4, 6)
    assert (found.rho, found.tau, found.clear_tau) == pytest.approx((1, 1, 1))


def test_pairs_within_the_noise_do_not_count():
    measured, predicted = [100, 103, 110, 120], [2, 1, 4, 3]
    # 100 and 103 differ by 3 %: of the other five pairs, 110 and 120 are in the wrong order.
    assert clear_kendall(measured, predicted, noise=0.04) == (5, pytest.approx(3 / 5))
    assert clear_kendall(measured, predicted, noise=0.0) == (6, pytest.approx(2 / 6))
    assert clear_kendall(measured, predicted, noise=9.0) == (0, 0.0)


def test_spread_of_repeats():
    once = repeat_spread([[100.0, 103.0, 101.0]])
    logs = [math.log(value) for value in (100.0, 103.0, 101.0)]
    assert once == pytest.approx(statistics.stdev(logs))
    # A run that is printed twice repeats nothing, nor does a plan that ran once.
    assert repeat_spread([[100.0, 103.0, 101.0, 101.0], [7.0], [5.0, 5.0]]) == pytest.approx(once)
    assert repeat_spread([[7.0]]) == 0.0


def test_attainable_tau_is_that_of_noisy_runs():
    means, spread, draws = [100.0, 101.0, 103.0, 103.5, 110.0], 0.01, 4000
    generator = random.Random(1)
    taus = [
        kendall(means, [mean * math.exp(generator.gauss(0, spread)) for mean in means])
        for _ in range(draws)
    ]
    error = 4 * statistics.stdev(taus) / draws**0.5
    assert attainable_kendall(means, spread) == pytest.approx(statistics.fmean(taus), abs=error)
    assert attainable_kendall(means, 0.0) == 1.0
