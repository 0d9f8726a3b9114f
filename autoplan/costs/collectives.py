"""Seconds of collectives: rings over a two-level network, or a measured curve.

With n ranks, k of them in each of m = n / k nodes, payload S bytes of the whole tensor:

- bandwidth B of a ring is that of its slowest hop, at the part of it that the payload reaches.
  Between nodes, k rings share the work, each crossing through its own adapter:
  ``B = min(intra, k * inter)``.
- a pass around the ring has ``n - m`` hops inside nodes and ``m - 1`` between them.
- all_gather, reduce_scatter: ``S (n-1)/n / B`` + the latencies of one pass.
- all_reduce is a reduce_scatter followed by an all_gather: twice that.
- all_to_all: each rank keeps 1/n of its S/n and sends the rest, ``S (n-1)/n^2``: the part for
  ranks of its node and the part for other nodes, at the same time over both levels. Messages
  for one node travel together, so m - 1 of them leave it (NCCL's PXN).
- broadcast: a pipelined ring, ``S / B`` + the latencies of one pass.
- p2p: ``S / bandwidth`` + one latency, of the slower level that the group spans; S is what
  the busiest rank sends, to its neighbours together.

Source: Thakur, Rabenseifner and Gropp 2005; NCCL's tuning model. A curve that was measured
for the same kind and number of ranks on the same level wins.
"""

from __future__ import annotations

from autoplan.ir.hardware import Cluster, Link
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind

__all__ = ["collective_time", "rank_bytes"]


def rank_bytes(kind: CollectiveKind, payload: float, ranks: int) -> float:
    """Bytes that one rank sends for a payload of that many bytes on ``ranks`` ranks."""
    if ranks == 1:
        return 0.0
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return 2.0 * payload * (ranks - 1) / ranks
        case CollectiveKind.ALL_GATHER | CollectiveKind.REDUCE_SCATTER:
            return payload * (ranks - 1) / ranks
        case CollectiveKind.ALL_TO_ALL:
            return payload * (ranks - 1) / ranks**2
        case CollectiveKind.BROADCAST | CollectiveKind.P2P:
            return float(payload)


def collective_time(kind: CollectiveKind, payload: float, group: Group, cluster: Cluster) -> float:
    """Seconds of one collective of ``payload`` bytes; zero for one rank or no bytes.

    ``payload`` is bytes of the whole tensor: gathered, reduced, or exchanged by all ranks
    together; for p2p, bytes sent.
    """
    if group.ranks == 1 or payload <= 0:
        return 0.0
    measured = _measured(kind, payload, group, cluster)
    if measured is not None:
        return measured
    if kind is CollectiveKind.P2P:
        link = cluster.intra if group.per_node == group.ranks else cluster.inter
        return link.latency + payload / link.bandwidth
    if kind is CollectiveKind.ALL_TO_ALL:
        return _all_to_all(payload, group, cluster)
    passes = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    bandwidth = _ring_bandwidth(payload, group, cluster)
    return (
        passes * _pass_latency(group, cluster) + rank_bytes(kind, payload, group.ranks) / bandwidth
    )


def _level(group: Group, cluster: Cluster) -> Link | None:
    """The only network level the group uses, if it is one."""
    if group.per_node == group.ranks:
        return cluster.intra
    return cluster.inter if group.per_node == 1 else None


def _measured(kind: CollectiveKind, payload: float, group: Group, cluster: Cluster) -> float | None:
    link = _level(group, cluster)
    for curve in link.measured if link is not None else ():
        if curve.kind == kind and curve.ranks == group.ranks:
            return curve.seconds(float(payload))
    return None


def _ring_bandwidth(payload: float, group: Group, cluster: Cluster) -> float:
    inside = cluster.intra.bandwidth * cluster.intra.efficiency(payload)
    if group.per_node == group.ranks:
        return inside
    between = cluster.inter.bandwidth * cluster.inter.efficiency(payload)
    if group.per_node == 1:
        return between
    return min(inside, between * group.per_node)


def _pass_latency(group: Group, cluster: Cluster) -> float:
    nodes = group.ranks // group.per_node
    inside, between = group.ranks - nodes, nodes - 1
    return inside * cluster.intra.latency + between * cluster.inter.latency


def _all_to_all(payload: float, group: Group, cluster: Cluster) -> float:
    ranks, per_node = group.ranks, group.per_node
    nodes = ranks // per_node
    block = payload / ranks**2
    inside = block * (per_node - 1) / cluster.intra.bandwidth
    outside = block * (ranks - per_node) / cluster.inter.bandwidth
    latency = (per_node - 1) * cluster.intra.latency + (nodes - 1) * cluster.inter.latency
    return latency + max(inside, outside)
