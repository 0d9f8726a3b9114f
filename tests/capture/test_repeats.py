"""The search for repeats of operators, against one that tries everything."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.capture.repeats import Repeat, Step, find_repeats


def naive(steps, widths, max_width):
    """Best (work, units, -width) of disjoint repeats, by trying every one at every place."""
    count = len(steps)

    def is_equal(a, b, period):
        """Unit at ``b`` is that at ``a`` moved."""
        for one, two in zip(steps[a : a + period], steps[b : b + period], strict=True):
            if one.token != two.token or len(one.links) != len(two.links):
                return False
            for near, far in zip(one.links, two.links, strict=True):
                if near != far and not (near >= 0 and far - near == b - a):
                    return False
        return True

    def is_unit(start, period):
        ends = widths[start], widths[start + period]
        return max(ends) <= max_width and any(
            step.has_parameter for step in steps[start : start + period]
        )

    @cache
    def best(start):
        if start == count:
            return (0, 0, 0)
        choices = [best(start + 1)]
        for period in range(1, (count - start) // 2 + 1):
            units = 1
            at = start
            while (
                is_unit(at, period)
                and at + 2 * period <= count
                and is_unit(at + period, period)
                and is_equal(at, at + period, period)
            ):
                units += 1
                at += period
                stop = at + period
                rest = best(stop)
                work = sum(step.work for step in steps[start:stop])
                width = sum(widths[start:stop:period])
                choices.append((rest[0] + work, rest[1] + units, rest[2] - width))
        return max(choices)

    return best(0)


def score(steps, widths, repeats):
    return (
        sum(step.work for r in repeats for step in steps[r.start : r.stop]),
        sum(r.count for r in repeats),
        -sum(sum(widths[r.start : r.stop : r.period]) for r in repeats),
    )


@st.composite
def chains(draw):
    """Random chains made of repeated random units, with some wires to far places."""
    tokens = []
    for _ in range(draw(st.integers(1, 3))):
        unit = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        tokens += unit * draw(st.integers(1, 5))
    work = draw(st.lists(st.integers(0, 5), min_size=3, max_size=3))
    owned = draw(st.lists(st.booleans(), min_size=3, max_size=3))
    steps = []
    for index, token in enumerate(tokens):
        back = draw(st.sampled_from([1, 1, 1, 2, 3, 100]))
        link = index - back if index >= back else -1
        steps.append(Step(token, (link,), work[token], owned[token]))
    widths = [draw(st.integers(1, 3)) for _ in range(len(steps) + 1)]
    return steps, widths


@settings(max_examples=300, deadline=None)
@given(chains(), st.integers(1, 3))
def test_as_good_as_trying_everything(chain, max_width):
    steps, widths = chain
    found = find_repeats(steps, widths, max_width=max_width)
    assert score(steps, widths, found) == naive(steps, widths, max_width)
    stops = [0, *(r.stop for r in found)]
    assert all(r.start >= stop and r.count >= 2 for r, stop in zip(found, stops, strict=False))


def test_alternating_units_are_one_period():
    kinds = [9, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 8]
    steps = [Step(kind, (index - 1,), 1, True) for index, kind in enumerate(kinds)]
    (repeat,) = find_repeats(steps, [1] * 15, max_width=1)
    assert (repeat.start, repeat.period, repeat.count) == (1, 4, 3)


def test_many_operators_are_searched_quickly():
    steps = [Step(index % 40, (index - 1,), 1, True) for index in range(6000)]
    widths = [1 + (index % 40 != 0) for index in range(6001)]
    (repeat,) = find_repeats(steps, widths, max_width=1)
    # The first unit reads what lies outside.
    assert repeat == Repeat(40, 40, 149)
