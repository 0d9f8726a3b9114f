"""Latency and bandwidth out of timings; what they say of sizes that were not measured."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.profiles.fit import fit_timings

KIB = [2**n for n in range(12, 28)]


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12))
def test_one_line_is_found_exactly(latency, bandwidth):
    fit = fit_timings([(x, latency + x / bandwidth) for x in KIB])
    (line,) = fit.regimes
    assert fit.max_error < 1e-6
    assert line.seconds(2**20) == pytest.approx(latency + 2**20 / bandwidth)


def test_two_regimes_are_split_where_the_protocol_changes():
    def truth(x):
        return 20e-6 + x / 2e9 if x <= 2**19 else 250e-6 + x / 20e9

    fit = fit_timings([(x, truth(x)) for x in KIB])
    small, large = fit.regimes
    assert small.up_to == 2**19
    assert (small.latency, 1 / small.per_byte) == pytest.approx((20e-6, 2e9))
    assert (large.latency, 1 / large.per_byte) == pytest.approx((250e-6, 20e9))
    assert fit.max_error < 1e-6


def test_noise_alone_makes_no_regime_and_is_told():
    rng = random.Random(3)
    fit = fit_timings([(x, (50e-6 + x / 5e9) * rng.uniform(0.95, 1.05)) for x in KIB])
    assert 0.01 < fit.rms_error <= fit.max_error < 0.06
    for x in KIB:
        assert fit.seconds(x) == pytest.approx(50e-6 + x / 5e9, rel=0.06)


@given(
    st.lists(st.tuples(st.integers(1, 2**34), st.floats(1e-7, 10)), min_size=1, max_size=12),
    st.integers(1, 2**34),
    st.integers(0, 2**34),
)
def test_any_timings_give_rising_positive_seconds(points, size, more):
    fit = fit_timings(points)
    assert 0.0 <= fit.seconds(size) <= fit.seconds(size + more) < math.inf
    assert fit.seconds(size) > 0.0
