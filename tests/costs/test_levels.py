"""Collectives over networks of several levels: invariants, and times by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.collectives import collective_time
from autoplan.ir.hardware import Level
from autoplan.ir.mesh import Group, Mesh, MeshAxis, spread
from autoplan.ir.placement import CollectiveKind
from autoplan.profiles import load_cluster

Kind = CollectiveKind
TWO = load_cluster("32x8xh100")
GIB = 2**30


@st.composite
def networks(draw):
    """Two to four levels over 256 ranks, domains smaller or larger than a node."""
    domain = draw(st.sampled_from([0, 4, 16]))
    sizes = draw(st.sampled_from([(), (64,), (32, 128)]))
    factors = st.sampled_from([1.0, 1.5, 2.0, 4.0, 16.0])
    outer = tuple(Level(ranks=n, oversubscription=draw(factors)) for n in (*sizes, 256))
    return replace(TWO, domain=domain, outer=outer)


@st.composite
def placed(draw):
    """A network, and the group of an axis of a mesh over all its ranks."""
    cluster = draw(networks())
    degrees = [draw(st.sampled_from([1, 2, 4])) for _ in range(3)]
    mesh = Mesh(
        pp=degrees[0],
        dp_replicate=degrees[1],
        tp=degrees[2],
        dp_shard=256 // (degrees[0] * degrees[1] * degrees[2]),
    )
    return cluster, mesh.group(draw(st.sampled_from(list(MeshAxis))), cluster.sizes)


kinds = st.sampled_from(list(Kind))
sizes = st.integers(1, 2**34)


@given(placed(), kinds, sizes, sizes)
def test_more_bytes_never_take_less_time(case, kind, size, more):
    cluster, group = case
    one = collective_time(kind, size, group, cluster)
    assert (one == 0.0) == (group.ranks == 1)
    assert collective_time(kind, size + more, group, cluster) >= one


@given(placed(), sizes)
def test_all_reduce_is_reduce_scatter_and_all_gather(case, size):
    cluster, group = case
    both = sum(
        collective_time(k, size, group, cluster) for k in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    )
    assert collective_time(Kind.ALL_REDUCE, size, group, cluster) == pytest.approx(both, rel=1e-12)


@given(placed(), kinds, sizes, st.integers(0, 2))
def test_more_oversubscription_is_never_faster(case, kind, size, place):
    cluster, group = case
    outer = list(cluster.outer)
    place = min(place, len(outer) - 1)
    level = outer[place]
    outer[place] = replace(level, oversubscription=2 * level.oversubscription)
    worse = replace(cluster, outer=tuple(outer))
    assert collective_time(kind, size, group, worse) >= collective_time(kind, size, group, cluster)


@given(placed(), kinds, sizes)
def test_levels_that_a_group_does_not_cross_cost_nothing(case, kind, size):
    cluster, group = case
    counts = group.counts(len(cluster.levels))
    crossed = counts.index(group.ranks)
    slow = replace(cluster.inter, latency=1.0, bandwidth=1.0)
    outer = tuple(
        level if index <= crossed else replace(level, link=slow)
        for index, level in enumerate(cluster.outer, start=1)
    )
    other = replace(cluster, outer=outer)
    assert collective_time(kind, size, group, other) == collective_time(kind, size, group, cluster)


@given(kinds, sizes, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 32]))
def test_a_level_more_changes_nothing_inside_one_leaf(kind, size, inner, nodes):
    """Two levels keep the old numbers, listed or not, with or without more beyond."""
    listed = replace(TWO, outer=(Level(ranks=256),))
    beyond = replace(TWO, nodes=64, outer=(Level(ranks=256), Level(ranks=512, oversubscription=4)))
    group = Group(inner * nodes, inner)
    expected = collective_time(kind, size, group, TWO)
    for cluster in (listed, beyond):
        assert collective_time(kind, size, group, cluster) == expected


def test_placement_decides_the_levels():
    sizes = (8, 64)
    mesh = Mesh(pp=2, dp_replicate=2, dp_shard=8, tp=8)  # 256 ranks
    assert mesh.group(MeshAxis.TP, sizes) == Group(8, 8, (8,))
    assert mesh.group(MeshAxis.DP_SHARD, sizes) == Group(8, 1, (8,))
    assert mesh.group(MeshAxis.DP_REPLICATE, sizes) == Group(2, 1, (1,))
    assert mesh.group(MeshAxis.PP, sizes) == Group(2, 1, (1,))
    whole = mesh.group(MeshAxis.DP_REPLICATE, sizes, through=MeshAxis.DP_SHARD)
    assert whole == Group(16, 1, (8,))
    # Strides count: without tp the same shards are neighbours.
    assert Mesh(dp_shard=8, dp_replicate=32).group(MeshAxis.DP_SHARD, sizes) == Group(8, 8, (8,))


@given(
    st.integers(1, 12), st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 6), st.sampled_from([4, 8])
)
def test_a_spread_is_that_of_the_ranks_themselves(ranks, stride, blocks, size):
    """Place all groups rank by rank; the fewest that one of them has in a unit count."""
    world = ranks * stride * blocks
    least = ranks
    for first in range(0, world, ranks * stride):
        for lane in range(stride):
            units = [(first + lane + i * stride) // size for i in range(ranks)]
            least = min(least, *(units.count(unit) for unit in units))
    group = spread(ranks, stride, (size,), world=world)
    assert ranks % group.inner == 0
    if size % stride == 0 or stride % size == 0:
        assert group.inner <= least
        if least == ranks or ranks * stride % size == 0:
            assert group.inner == least


def test_oversubscription_by_hand():
    cluster = replace(TWO, outer=(Level(ranks=64), Level(ranks=256, oversubscription=4.0)))
    rate, hop, inside = 48.5e9, 4e-6, 366e9
    # One rank a node, 8 a leaf, 4 leaves. All 8 ranks of a leaf share its way out, so that a
    # factor of 4 costs a ring nothing; its crossings are 28 + 3 hops.
    one = Group(32, 1, (8,))
    ring = 31 * hop + GIB * 31 / 32 / rate
    # By levels: 7 hops, then 3 with an eighth of the bytes at a quarter of the rate.
    by_level = 7 * hop + GIB * 7 / 8 / rate + 3 * hop + GIB / 8 * 3 / 4 / (rate / 4)
    assert by_level > ring
    assert collective_time(Kind.ALL_GATHER, GIB, one, cluster) == pytest.approx(ring)
    # Small ones gain by levels: 10 hops and not 31.
    assert collective_time(Kind.ALL_GATHER, 32, one, cluster) == pytest.approx(10 * hop, rel=1e-3)
    # One rank a leaf: a quarter of the adapter.
    assert collective_time(Kind.ALL_GATHER, GIB, Group(4, 1, (1,)), cluster) == pytest.approx(
        3 * hop + GIB * 3 / 4 / (rate / 4)
    )
    assert collective_time(Kind.P2P, GIB, Group(2, 1, (1,)), cluster) == pytest.approx(
        hop + GIB / (rate / 4)
    )
    # all_to_all of 32: 31 blocks leave through the adapter, 24 through the quarter beyond.
    assert collective_time(Kind.ALL_TO_ALL, GIB, one, cluster) == pytest.approx(
        10 * hop + GIB * 24 / 32**2 / (rate / 4)
    )
    assert inside > 8 * rate / 4


def test_a_domain_larger_than_a_node():
    file = load_cluster("18x4xgb200")
    rack = replace(file, domain=72)
    mesh = Mesh(dp_shard=9, tp=8)
    assert mesh.group(MeshAxis.TP, file.sizes) == Group(8, 4)
    group = mesh.group(MeshAxis.TP, rack.sizes)
    assert group == Group(8, 8)
    slow = collective_time(Kind.ALL_REDUCE, GIB, Group(8, 4), file)
    assert collective_time(Kind.ALL_REDUCE, GIB, group, rack) < slow / 2
