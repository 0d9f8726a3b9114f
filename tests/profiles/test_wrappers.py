"""What torch's wrappers do on the host, from their timings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.profiles.wrappers import UnitTiming, unit_work

SIZES = [(k, n) for k in (1, 8, 24) for n in (2**14, 2**18, 2**20)]


def gather(size):
    return 1e-3 + size / 1e9


def reduce(size):
    return 2e-3 + size / 5e8


def timings(unpack, pack, noise=0.0):
    made = []
    for index, (k, n) in enumerate(SIZES):
        off = 1.0 + (noise if index % 2 else -noise)
        forward = gather(4 * n) + unpack[0] + unpack[1] * k + unpack[2] * 4 * n
        backward = forward + reduce(4 * n) + pack[0] + pack[1] * k + pack[2] * 4 * n
        made.append(
            UnitTiming(
                parameters=k, numel=n, forward=f"{forward * off} s", backward=f"{backward * off} s"
            )
        )
    return made


@given(
    unpack=st.tuples(st.floats(0, 1e-2), st.floats(0, 1e-3), st.floats(0, 1e-8)),
    pack=st.tuples(st.floats(0, 1e-2), st.floats(0, 1e-3), st.floats(0, 1e-8)),
)
def test_what_made_the_timings_is_found(unpack, pack):
    work = unit_work(timings(unpack, pack), gather, reduce)
    for found, made in ((work.unpack, unpack), (work.pack, pack)):
        for k, n in ((4, 2**16), (16, 2**19)):
            expected = made[0] + k * made[1] + 4 * n * made[2]
            assert found.seconds(k, 4 * n) == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_faster_than_its_collectives_is_no_work_at_all():
    work = unit_work(timings((0, 0, 0), (0, 0, 0)), lambda size: 2 * gather(size), reduce)
    assert work.unpack.seconds(8, 2**20) == 0.0


def test_noise_makes_no_negative_work():
    work = unit_work(timings((1e-4, 0, 0), (0, 1e-5, 0), noise=0.1), gather, reduce)
    for part in (work.unpack, work.pack):
        assert min(part.fixed, part.per_tensor, part.per_byte) >= 0.0


def test_no_timings_no_work():
    assert unit_work([], gather, reduce) is None
