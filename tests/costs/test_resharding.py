"""Conversions: which collective each way, what is free, what is illegal."""

import pytest
from handmade_blocks import P, R, S, tensor

from autoplan.costs.collectives import collective_time
from autoplan.costs.resharding import conversion_time
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind, parse_placement
from autoplan.profiles import load_cluster

CLUSTER, GROUP = load_cluster("8xh100"), Group(4, 4)
X = tensor("x", (16, 32, 64))


@pytest.mark.parametrize(
    ("produced", "required", "forward", "backward"),
    [
        ("R", "R", None, None),
        ("R", "R*", None, "all_reduce"),
        ("R", "S(0)", None, "all_gather"),
        ("S(0)", "R", "all_gather", None),
        ("S(0)", "R*", "all_gather", "reduce_scatter"),
        ("P", "R", "all_reduce", None),
        ("P", "R*", "all_reduce", "all_reduce"),
        ("P", "S(0)", "reduce_scatter", "all_gather"),
        ("S(0)", "S(1)", "all_to_all", "all_to_all"),
        ("S(0)", "S(0)", None, None),
    ],
)
def test_table(produced, required, forward, backward):
    times = conversion_time(X, parse_placement(produced), parse_placement(required), GROUP, CLUSTER)
    assert times is not None
    for kind, seconds in ((forward, times.forward), (backward, times.backward)):
        if kind is None:
            assert seconds == 0.0
            continue
        least = collective_time(CollectiveKind(kind), X.size, GROUP, CLUSTER)
        copies = 4 * X.size / (0.866 * 3.35e12)
        assert least <= seconds <= least + copies


@pytest.mark.parametrize(
    ("produced", "required"), [("R", "S(2,pad)"), ("S(2,pad)", "R*"), ("P", "S(2,pad)")]
)
def test_padding_is_sent_like_data(produced, required):
    odd, even = tensor("x", (16, 32, 61)), tensor("x", (16, 32, 64))
    pair = [parse_placement(produced), parse_placement(required)]
    plain = [parse_placement(text.replace(",pad", "")) for text in (produced, required)]
    padded = conversion_time(odd, *pair, GROUP, CLUSTER)
    whole = conversion_time(even, *plain, GROUP, CLUSTER)
    assert padded == whole and padded.payload == even.size


def test_illegal_pairs():
    assert conversion_time(X, S(0), parse_placement("S(1,pad)"), GROUP, CLUSTER) is None
    assert conversion_time(X, R, P, GROUP, CLUSTER) is None
    assert conversion_time(X, S(0), P, GROUP, CLUSTER) is None
    assert conversion_time(X, S(0, 2), S(1), GROUP, CLUSTER) is None


def test_no_gradient_no_backward():
    ids = tensor("ids", (16, 32), grad=False)
    times = conversion_time(ids, R, S(0), GROUP, CLUSTER)
    assert times is not None
    assert times.forward == times.backward == 0.0
    assert times.backward_kind is None


def test_inner_dimensions_pay_for_the_copy():
    outer = conversion_time(X, S(0), R, GROUP, CLUSTER)
    inner = conversion_time(X, S(1), R, GROUP, CLUSTER)
    flat = conversion_time(tensor("x", (1, 512, 64)), S(1), R, GROUP, CLUSTER)
    assert outer is not None and inner is not None and flat is not None
    assert inner.forward > outer.forward == flat.forward


def test_one_rank_is_free():
    times = conversion_time(X, P, R, Group(1, 1), CLUSTER)
    assert times is not None and times.forward == times.backward == 0.0
