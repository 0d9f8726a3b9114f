"""A cluster with the numbers of a measured profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from autoplan.errors import InputError, UsageError
from autoplan.ir.hardware import (
    Cluster,
    CollectiveCurve,
    Curve,
    Link,
    Provenance,
    Source,
    UnitWork,
)
from autoplan.ir.placement import CollectiveKind
from autoplan.profiles.catalogue import accelerator_file
from autoplan.profiles.doubts import profile_notes
from autoplan.profiles.fit import Fit, fit_timings
from autoplan.profiles.measured import (
    CollectiveFit,
    CollectiveTiming,
    FitRegime,
    Kind,
    MeasuredProfile,
    Where,
    describe,
    measured_accelerator,
)
from autoplan.profiles.wrappers import unit_work

__all__ = ["apply_profile", "fits_of", "measured_link"]


def measured_link(profile: MeasuredProfile, base: Link, *, level: str = "node") -> Link:
    """``base`` with the profile's collectives as curves, and latency and bandwidth from them.

    The latter serve what was not measured: the smallest all_reduce gives the latency of its
    2(n-1) hops, the largest one the bandwidth. Kinds and groups without timings are
    sources of their own, as defaults.
    """
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for timing in profile.collectives:
        if timing.level == level:
            group = groups.setdefault((timing.kind, timing.ranks), [])
            group.append((float(timing.payload), timing.time))
    reductions = [ranks for kind, ranks in groups if kind == CollectiveKind.ALL_REDUCE]
    if not reductions:
        return base
    curves = tuple(
        CollectiveCurve(kind, ranks, _curve(group)) for (kind, ranks), group in groups.items()
    )
    ranks = max(reductions)
    points = _rising(groups[CollectiveKind.ALL_REDUCE, ranks])
    latency = points[0][1] / (2 * (ranks - 1))
    size, seconds = points[-1]
    busy = max(seconds - points[0][1], 0.1 * seconds)
    said = describe(profile)
    sources = [Source(field, Provenance.MEASURED, said) for field in ("latency", "bandwidth")]
    sources += [Source(f"{kind} on {n} ranks", Provenance.MEASURED, said) for kind, n in groups]
    sources += [
        Source(f"{kind} on {n} ranks", Provenance.DEFAULT, "not in the profile: rings at its rates")
        for kind, n in _wanted(profile.ranks)
        if (kind, n) not in groups
    ]
    return replace(
        base,
        latency=latency,
        bandwidth=2 * (ranks - 1) / ranks * size / busy,
        measured=curves,
        sources=tuple(sources),
    )


def fits_of(timings: Iterable[CollectiveTiming]) -> tuple[CollectiveFit, ...]:
    """Latency and bandwidth of each kind, level and group size, with the residuals."""
    groups: dict[tuple[Kind, Where, int], list[tuple[float, float]]] = {}
    for timing in timings:
        group = groups.setdefault((timing.kind, timing.level, timing.ranks), [])
        group.append((float(timing.payload), timing.time))
    return tuple(
        _fit_record(kind, level, ranks, fit_timings(points))
        for (kind, level, ranks), points in groups.items()
    )


def _fit_record(kind: Kind, level: Where, ranks: int, fit: Fit) -> CollectiveFit:
    regimes = tuple(
        FitRegime.model_construct(
            up_to=None if math.isinf(regime.up_to) else int(regime.up_to),
            latency=regime.latency,
            bandwidth=1.0 / regime.per_byte if regime.per_byte else None,
        )
        for regime in fit.regimes
    )
    return CollectiveFit(
        kind=kind,
        level=level,
        ranks=ranks,
        regimes=regimes,
        max_error=fit.max_error,
        rms_error=fit.rms_error,
    )


def _wanted(ranks: int) -> Iterator[tuple[str, int]]:
    """Kinds and group sizes that plans on so many ranks may use."""
    for kind in CollectiveKind:
        for group in range(2, ranks + 1):
            if ranks % group == 0 and (kind is not CollectiveKind.P2P or group == 2):
                yield kind.value, group


def _curve(timings: Iterable[tuple[float, float]]) -> Curve:
    """Timings, with what their fit says of smaller and larger payloads at either end.

    Between two payloads that were measured, interpolation is closer to a third one than
    the fit is (nccl-tests of A100 and H200: median 2.6 against 3.2 %, 1.7 against 1.9 %);
    beyond them the fit errs less at worst, since it keeps latency and bandwidth apart.
    """
    points = _rising(timings)
    fit = fit_timings(points)
    (first, start), (last, end) = points[0], points[-1]
    below = [first / 4**n for n in range(int(math.log(first, 4)), 0, -1)]
    above = [last * 2**n for n in range(1, 21)]
    return Curve(
        (
            *((x, start * fit.seconds(x) / fit.seconds(first)) for x in below),
            *points,
            *((x, end * fit.seconds(x) / fit.seconds(last)) for x in above),
        ),
        extrapolate=True,
    )


def _rising(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Points by x with y never falling: more work doesn't take less time, noise aside."""
    best: dict[float, float] = {}
    for x, y in points:
        best[x] = min(y, best.get(x, math.inf))
    rising: list[tuple[float, float]] = []
    for x in sorted(best, reverse=True):
        rising.append((x, min(best[x], rising[-1][1]) if rising else best[x]))
    return tuple(reversed(rising))


def _units(profile: MeasuredProfile) -> UnitWork | None:
    """FSDP2's own work: what the collectives of all ranks leave of its units' timings."""
    curves = {
        kind: _curve((float(t.payload), t.time) for t in timings)
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        if (
            timings := [
                t for t in profile.collectives if (t.kind, t.ranks) == (kind, profile.ranks)
            ]
        )
    }
    if len(curves) < 2:
        return None
    gather, reduce = (curves[k] for k in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER))
    return unit_work(
        profile.units, lambda size: gather(float(size)), lambda size: reduce(float(size))
    )


def apply_profile(cluster: Cluster, profile: MeasuredProfile, *, path: Path) -> Cluster:
    """``cluster`` with the profile's numbers; `InputError` if it is of other hardware."""
    try:
        measured = accelerator_file(profile.device).name
    except UsageError as error:
        raise InputError(
            f"{path}: the profile is of {profile.device!r} ({profile.device_name}), which the "
            "catalogue doesn't have",
            hint=error.hint,
        ) from error
    if measured != cluster.accelerator.name:
        raise InputError(
            f"{path}: the profile is of {profile.device} ({profile.device_name}), the cluster "
            f"{cluster.spec!r} has {cluster.accelerator.name}",
            hint="leave the profile out, or measure on the cluster's own hardware",
        )
    if profile.ranks != cluster.ranks_per_node:
        raise InputError(
            f"{path}: measured with {profile.ranks} ranks at work on the machine, the cluster "
            f"{cluster.spec!r} has {cluster.ranks_per_node} a node: rates of one rank differ",
            hint=f"measure again with {cluster.ranks_per_node} ranks",
        )
    accelerator = measured_accelerator(profile, cluster.accelerator)
    units = _units(profile)
    if units is not None:
        said = Source("units", Provenance.MEASURED, describe(profile))
        accelerator = replace(accelerator, units=units, sources=(*accelerator.sources, said))
    notes = profile_notes(profile, path)
    if cluster.nodes > 1 and all(timing.level == "node" for timing in profile.collectives):
        notes += (
            f"{path.name}: its ranks were on one host, so collectives across nodes are those of "
            f"{cluster.inter.name} in the catalogue",
        )
    if accelerator.memory <= accelerator.reserved:
        raise InputError(
            f"{path}: memory: {profile.memory} bytes is too little for its ranks",
            hint="measure again: autoplan profile",
        )
    intra = measured_link(profile, cluster.intra)
    inter = measured_link(profile, cluster.inter, level="across")
    if cluster.inter.name == cluster.intra.name and inter is cluster.inter:
        inter = measured_link(profile, cluster.inter)
    return replace(
        cluster,
        accelerator=accelerator,
        intra=intra,
        inter=inter,
        notes=(*cluster.notes, *notes),
    )
