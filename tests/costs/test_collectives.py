"""Collectives: invariants any correct model keeps, and hand-computed times."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.collectives import collective_time, rank_bytes
from autoplan.ir.hardware import CollectiveCurve, Curve
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind
from autoplan.profiles import load_cluster

Kind = CollectiveKind
CLUSTERS = [load_cluster(spec) for spec in ("16x8xh100", "4x8xa100", "8x8xmi300x", "cpu:16")]
MiB = 2**20


def groups(ranks_per_node):
    for per_node in (1, 2, 4, 8):
        if per_node <= ranks_per_node:
            for nodes in (1, 2, 4):
                yield Group(per_node * nodes, per_node)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: c.spec)
def test_one_rank_and_no_bytes_are_free(kind, cluster):
    assert collective_time(kind, MiB, Group(1, 1), cluster) == 0.0
    assert collective_time(kind, 0, Group(2, 2), cluster) == 0.0


@given(
    cluster=st.sampled_from(CLUSTERS),
    kind=st.sampled_from(list(Kind)),
    group=st.sampled_from(list(groups(8))),
    small=st.integers(1, 2**34),
    more=st.integers(0, 2**34),
)
def test_more_bytes_never_take_less_time(cluster, kind, group, small, more):
    one = collective_time(kind, small, group, cluster)
    assert one >= 0.0
    assert collective_time(kind, small + more, group, cluster) >= one


@given(
    cluster=st.sampled_from(CLUSTERS),
    group=st.sampled_from(list(groups(8))),
    size=st.integers(1, 2**36),
)
def test_all_reduce_is_reduce_scatter_and_all_gather(cluster, group, size):
    both = sum(
        collective_time(kind, size, group, cluster)
        for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    )
    assert collective_time(Kind.ALL_REDUCE, size, group, cluster) == pytest.approx(both)


# Small messages may gain: an all_to_all over nodes sends fewer, bundled ones.
@given(cluster=st.sampled_from(CLUSTERS), size=st.integers(2**26, 2**34))
def test_a_group_over_nodes_is_never_faster(cluster, size):
    if cluster.intra.bandwidth < 2 * cluster.inter.bandwidth:  # as fast: two ways at once
        return
    for kind in Kind:
        inside = collective_time(kind, size, Group(8, 8), cluster)
        assert collective_time(kind, size, Group(8, 4), cluster) >= inside
        assert collective_time(kind, size, Group(8, 1), cluster) >= inside


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_of_a_rank_by_moving_them(ranks):
    """Count the elements that leave rank 0 when each collective is carried out by hand."""
    numel = ranks * ranks * 5
    # all_to_all: rank 0 holds numel / ranks, keeps the piece addressed to itself.
    pieces = [numel // ranks // ranks] * ranks
    assert rank_bytes(Kind.ALL_TO_ALL, numel, ranks) == sum(pieces[1:])
    # ring all_gather: in each of ranks - 1 rounds a rank passes on one shard.
    sent = sum(numel // ranks for _ in range(ranks - 1))
    assert rank_bytes(Kind.ALL_GATHER, numel, ranks) == pytest.approx(sent)
    assert rank_bytes(Kind.REDUCE_SCATTER, numel, ranks) == pytest.approx(sent)
    assert rank_bytes(Kind.ALL_REDUCE, numel, ranks) == pytest.approx(2 * sent)


def test_hand_computed_times():
    cluster = load_cluster("2x8xh100")
    gib = 2**30
    # 14 hops of 1.2 us, and 2 x 7/8 GiB at 366 GB/s
    assert collective_time(Kind.ALL_REDUCE, gib, Group(8, 8), cluster) == pytest.approx(
        14 * 1.2e-6 + 1.75 * gib / 366e9
    )
    # Two nodes of 8: 14 hops inside, one between; 8 adapters of 48.5 GB/s beat the 366.
    assert collective_time(Kind.ALL_GATHER, gib, Group(16, 8), cluster) == pytest.approx(
        14 * 1.2e-6 + 4e-6 + 15 / 16 * gib / 366e9
    )
    # One rank a node: the adapter alone.
    assert collective_time(Kind.ALL_GATHER, gib, Group(2, 1), cluster) == pytest.approx(
        4e-6 + gib / 2 / 48.5e9
    )
    assert collective_time(Kind.P2P, gib, Group(2, 1), cluster) == pytest.approx(
        4e-6 + gib / 48.5e9
    )
    # Neighbours in a line of 2 x 8: the slowest pair lies between the nodes.
    assert collective_time(Kind.P2P, gib, Group(16, 8), cluster) == pytest.approx(
        4e-6 + gib / 48.5e9
    )
    assert collective_time(Kind.P2P, gib, Group(8, 8), cluster) == pytest.approx(
        1.2e-6 + gib / 366e9
    )
    # all_to_all on 2 x 8: 8 of 16 destinations are in the other node.
    assert collective_time(Kind.ALL_TO_ALL, gib, Group(16, 8), cluster) == pytest.approx(
        7 * 1.2e-6 + 4e-6 + gib * 8 / 256 / 48.5e9
    )


@pytest.mark.parametrize(
    ("size", "published"),
    # nccl-tests on 8 H100 (NVIDIA/nccl-tests output): seconds by payload.
    [(1024, 16.94e-6), (33554432, 199.3e-6), (67108864, 324.7e-6), (268435456, 1112.5e-6)],
)
def test_published_all_reduce_of_8_h100(size, published):
    predicted = collective_time(Kind.ALL_REDUCE, size, Group(8, 8), load_cluster("8xh100"))
    assert predicted == pytest.approx(published, rel=0.25)


def test_measured_curve_wins_for_its_kind_ranks_and_level():
    cluster = load_cluster("2x8xh100")
    curve = CollectiveCurve("all_gather", 8, Curve(((1e3, 1.0), (1e6, 3.0)), extrapolate=True))
    with_curve = replace(cluster, intra=replace(cluster.intra, measured=(curve,)))
    assert collective_time(Kind.ALL_GATHER, 1e6, Group(8, 8), with_curve) == pytest.approx(3.0)
    for kind, group in (
        (Kind.ALL_REDUCE, Group(8, 8)),
        (Kind.ALL_GATHER, Group(4, 4)),
        (Kind.ALL_GATHER, Group(8, 4)),
        (Kind.ALL_GATHER, Group(8, 1)),
    ):
        assert collective_time(kind, 1e6, group, with_curve) == collective_time(
            kind, 1e6, group, cluster
        )
