"""Statistics against worked values."""

import pytest

from benchmarks.accuracy.statistics import errors, kendall, spearman, sweeps


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
    assert sweeps({"a": [1, 2, 3, 4]}, {"a": [1, 2, 3, 5]})["a"] == (
        4, pytest.approx(1), pytest.approx(1),
    )  # fmt: skip
