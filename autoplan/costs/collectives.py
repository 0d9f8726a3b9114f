"""Seconds of collectives: rings over a network of nested levels, or a measured curve.

With n ranks, c_i of them in each unit of level i (c_-1 = 1, all n in the last), N_i = n / c_i
units, payload S bytes of the whole tensor, and B_i the bandwidth of a rank at level i, after
oversubscription and at the part of it that the payload reaches:

- bandwidth B of a flat ring is that of its slowest crossing. The ranks in a unit share the work,
  each crossing through its own adapter: ``B = min_i c_(i-1) B_i`` over the levels it crosses.
- a pass around the ring has ``N_(i-1) - N_i`` hops at level i.
- all_gather, reduce_scatter: ``S (n-1)/n / B`` + the latencies of one pass.
- all_reduce is a reduce_scatter followed by an all_gather: twice that.
- over three levels or more, the three may also go level by level: a reduce_scatter inside,
  then one of S / c between the ranks with the same place inside (an all_gather the other way
  round). The better of the two counts. Over two levels, flat rings are what NCCL runs and what
  published runs confirm, so they alone count.
- all_to_all: each rank keeps 1/n of its S/n and sends the rest, ``S (n-1)/n^2``: over the
  innermost level what stays inside it, over each one beyond what leaves the one before, at
  the same time on all levels. Messages for one unit travel together (NCCL's PXN).
- broadcast: a pipelined flat ring, ``S / B`` + the latencies of one pass.
- p2p: ``S / bandwidth`` + one latency, of the outermost level that the group spans; S is what
  the busiest rank sends, to its neighbours together.

What crosses an outer level passes the ones between, so none of them may be slower.

Source: Thakur, Rabenseifner and Gropp 2005 (rings); NCCL's tuning model (channels, PXN);
Jia et al. 2018, arXiv 1807.11205 (all_reduce by levels). A curve that was measured for the
same kind and number of ranks on the same level wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autoplan.ir.hardware import Cluster, Curve, Link, NetworkLevel
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
    route = _route(group, cluster.levels)
    for curve in route.link.measured if route.link is not None else ():
        if curve.kind == kind and curve.ranks == group.ranks:
            return curve.seconds(float(payload))
    if kind is CollectiveKind.P2P:
        return route.hop + payload / min(bandwidth for bandwidth, _ in route.ways)
    if kind is CollectiveKind.ALL_TO_ALL:
        return _all_to_all(payload, route.counts, cluster.levels)
    if kind is CollectiveKind.BROADCAST:
        return route.latency + payload / _ring_bandwidth(payload, route)
    passes = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return passes * _one_pass(payload, route)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """What a group's collectives go through, whatever their size.

    ``link`` is that of the only level the group crosses, if it is one. ``units`` of the
    outermost level crossed are one ``hop`` apart; ``ways`` are the bandwidths of one rank on
    that way, ``crossings`` those of a flat ring, each with its efficiency; ``latency`` is that
    of a pass. ``inside`` is the route within a unit where levels may be taken one by one.
    """

    counts: tuple[int, ...]
    link: Link | None
    hop: float
    units: int
    ways: tuple[tuple[float, Curve], ...]
    crossings: tuple[tuple[float, Curve], ...]
    latency: float
    inside: _Route | None


@lru_cache(maxsize=4096)
def _route(group: Group, levels: tuple[NetworkLevel, ...]) -> _Route:
    return _route_of(group.counts(len(levels)), levels)


def _route_of(counts: tuple[int, ...], levels: tuple[NetworkLevel, ...]) -> _Route:
    ranks = counts[-1]
    last = counts.index(ranks)  # the first level that holds the whole group
    crossings = [(levels[0].bandwidth, levels[0].link.efficiency)] if counts[0] > 1 else []
    crossings += [
        (below * level.bandwidth, level.link.efficiency)
        for below, level in zip(counts[:last], levels[1:], strict=False)
    ]
    latency, below = 0.0, ranks
    for count, level in zip(counts, levels, strict=True):
        latency += (below - ranks // count) * level.latency
        below = ranks // count
    ways = levels[min(1, last) : last + 1]
    inside = None
    if last >= 2:
        inner = (*counts[:last], *(counts[last - 1],) * (len(counts) - last))
        inside = _route_of(inner, levels)
    return _Route(
        counts=counts,
        link=levels[last].link if not last or counts[last - 1] == 1 else None,
        hop=levels[last].latency,
        units=ranks // counts[last - 1] if last else ranks,
        ways=tuple((level.bandwidth, level.link.efficiency) for level in ways),
        crossings=tuple(crossings),
        latency=latency,
        inside=inside,
    )


def _one_pass(payload: float, route: _Route) -> float:
    """Seconds of a reduce_scatter or an all_gather."""
    ranks = route.counts[-1]
    if ranks == 1:
        return 0.0
    flat = route.latency + payload * (ranks - 1) / ranks / _ring_bandwidth(payload, route)
    if route.inside is None:
        return flat
    held = route.inside.counts[-1]
    across = _across(payload / held, route)
    return min(flat, _one_pass(payload, route.inside) + across)


def _across(payload: float, route: _Route) -> float:
    """Seconds of a ring through one rank of each unit, while the others do the same."""
    units = route.units
    rate = min(bandwidth * efficiency(payload) for bandwidth, efficiency in route.ways)
    return (units - 1) * route.hop + payload * (units - 1) / units / rate


def _ring_bandwidth(payload: float, route: _Route) -> float:
    return min(bandwidth * efficiency(payload) for bandwidth, efficiency in route.crossings)


def _all_to_all(payload: float, counts: tuple[int, ...], levels: tuple[NetworkLevel, ...]) -> float:
    ranks = counts[-1]
    block = payload / ranks**2
    slowest = block * (counts[0] - 1) / levels[0].bandwidth
    seconds = (counts[0] - 1) * levels[0].latency
    for below, count, level in zip(counts, counts[1:], levels[1:], strict=False):
        slowest = max(slowest, block * (ranks - below) / level.bandwidth)
        seconds += (count // below - 1) * level.latency
    return seconds + slowest
