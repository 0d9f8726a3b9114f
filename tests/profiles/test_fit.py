"""Latency and bandwidth out of timings; what they say of sizes that were not measured."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.hardware import Curve
from autoplan.profiles.applied import fits_of, measured_link
from autoplan.profiles.catalogue import find_link
from autoplan.profiles.fit import fit_timings
from autoplan.profiles.measured import MeasuredProfile


def document():
    return {
        "schema_version": 2,
        "device": "cpu",
        "device_name": "Test CPU",
        "cores": 8,
        "ranks": 2,
        "threads_per_rank": 1,
        "torch": "2.13.0",
        "date": "2026-01-01",
        "memory": "16 GiB",
        "kernel_latency": "4 us",
        "matmul": [{"dtype": "float32", "shape": [64, 64, 64], "time": "24 us"}],
        "copies": [{"moved": "1 MiB", "time": "54 us"}],
        "attention": {"dtype": "float32", "flop": 800_000_000, "time": "20 ms"},
        "collectives": [{"kind": "all_reduce", "ranks": 2, "payload": "4 KiB", "time": "200 us"}],
    }


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


# Azure/AI-benchmarking-guide@8fd0c6e1bd0f, nccl-tests all_reduce on 8 ranks: GB/s of bus
# bandwidth by payload, from 1 kB up by factors of about two.
BUS = {
    "A100": (
        0.04, 0.08, 0.17, 0.33, 0.67, 1.37, 2.7, 5.15, 10.11, 19.24, 36.22, 53.54, 71.43, 89.99,
        109.22, 132.77, 166.63, 174.18, 213.87, 221.58, 228.1, 230.22, 230.48, 231.58,
    ),
    "H200": (
        0.06, 0.12, 0.23, 0.47, 0.93, 1.84, 3.72, 7.39, 14.75, 29.38, 52.96, 88.78, 138.44, 181.94,
        240.41, 300.91, 368.11, 412.45, 432.24, 442.72, 467.58, 472.57, 477.41, 479.98,
    ),
}  # fmt: skip
SIZES = (
    1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 65e3, 132e3, 256e3, 524e3, 1e6, 2e6, 4e6, 8e6, 16e6, 33e6, 67e6,
    134e6, 268e6, 536e6, 1e9, 2e9, 4e9, 8e9,
)  # fmt: skip


def published(device):
    return [(x, 1.75 * x / (bus * 1e9)) for x, bus in zip(SIZES, BUS[device], strict=True)]


def errors(predict, held):
    return sorted(abs(predict(x) / y - 1) for x, y in held)


@pytest.mark.parametrize("device", BUS)
def test_between_measured_sizes_interpolation_is_better_than_the_fit(device):
    points = published(device)
    fitted, between = [], []
    for first in (0, 1):
        kept, held = points[first::2], points[1 - first :: 2]
        held = [point for point in held if kept[0][0] < point[0] < kept[-1][0]]
        fitted += errors(fit_timings(kept).seconds, held)
        # What plans use.
        link = measured_link(profile_of(kept), find_link("nvlink4"))
        between += errors(link.measured[0].seconds, held)
    assert statistics.median(between) < statistics.median(fitted) < 0.05
    assert max(between) < max(fitted)


def test_beyond_them_the_fit_errs_less_at_worst_than_the_last_slope():
    used, slope = [], []
    for device in BUS:
        points = published(device)
        kept, held = points[4:-4], points[:4] + points[-4:]
        link = measured_link(profile_of(kept), find_link("nvlink4"))
        used += errors(link.measured[0].seconds, held)
        slope += errors(Curve(tuple(kept), extrapolate=True), held)
    assert max(used) < max(slope) < 0.1


def profile_of(points):
    timings = [
        {"kind": "all_reduce", "ranks": 8, "payload": f"{x:.0f} B", "time": f"{y!r} s"}
        for x, y in points
    ]
    return MeasuredProfile.model_validate(document() | {"ranks": 8, "collectives": timings})


def test_residuals_of_published_timings():
    (record,) = fits_of(profile_of(published("H200")).collectives)
    assert len(record.regimes) == 2 and record.regimes[1].up_to is None
    assert 0.0 < record.rms_error < record.max_error < 0.1
    again = MeasuredProfile.model_validate(document() | {"fits": [record.model_dump(mode="json")]})
    assert again.fits == (record,)
