"""Measured profiles: what one machine really does, and its use in place of the catalogue.

A profile is one JSON file (`MeasuredProfile`), written by `autoplan.profiles.measure`. All
rates in it are those of one rank while all ``ranks`` of the machine work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, model_validator

from autoplan.errors import InputError
from autoplan.ir.hardware import (
    Accelerator,
    Cluster,
    CollectiveCurve,
    Curve,
    Link,
    MeasuredOperators,
    Provenance,
    Source,
)
from autoplan.ir.placement import CollectiveKind
from autoplan.profiles.catalogue import accelerator_file
from autoplan.profiles.schema import ByteCount, Record, Seconds, quantity, read_record
from autoplan.units import parse_time

__all__ = [
    "AttentionTiming",
    "CollectiveTiming",
    "CopyTiming",
    "MatmulTiming",
    "MeasuredProfile",
    "OperatorTiming",
    "apply_profile",
    "load_profile",
    "measured_accelerator",
    "measured_link",
    "measured_operators",
]

Count = Annotated[int, Field(ge=1, le=10**15)]
MaybeNoTime = Annotated[
    float, quantity(parse_time), Field(ge=0), PlainSerializer(lambda value: f"{value!r} s")
]


class MatmulTiming(Record):
    """One (m x k) by (k x n) matmul."""

    dtype: str
    shape: tuple[Count, Count, Count]
    time: Seconds

    @property
    def flop(self) -> int:
        """FLOP, one multiply-add = 2."""
        m, n, k = self.shape
        return 2 * m * n * k


class CopyTiming(Record):
    """One elementwise op that moves ``moved`` bytes, read and written together.

    Of ``copies`` the result is a new tensor, of ``updates`` one of the operands.
    """

    moved: Annotated[ByteCount, Field(gt=0)]
    time: Seconds


class AttentionTiming(Record):
    """One fused attention without a mask, forward."""

    dtype: str
    flop: Count
    time: Seconds


class CollectiveTiming(Record):
    """One collective; ``payload`` as in the cost model: bytes of the whole tensor."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
    ranks: Annotated[int, Field(ge=2)]
    payload: Annotated[ByteCount, Field(gt=0)]
    time: Seconds


class OperatorTiming(Record):
    """One operator on one rank by its signature (`costs.signature`), or why it has no timing.

    ``spread`` is the distance from the 10th to the 90th percentile of ``repeats`` timings,
    relative to their median.
    """

    signature: Annotated[str, Field(min_length=3)]
    forward: MaybeNoTime = 0.0
    backward: MaybeNoTime = 0.0
    spread: Annotated[float, Field(ge=0)] = 0.0
    repeats: Annotated[int, Field(ge=0)] = 0
    failure: str = ""

    @model_validator(mode="after")
    def _check(self) -> OperatorTiming:
        if not self.failure and not self.repeats:
            raise ValueError(f"{self.signature[:60]} has neither timings nor a failure")
        return self


class MeasuredProfile(Record):
    """What was measured on one machine, and on what machine."""

    schema_version: Literal[1]
    device: str
    device_name: str
    cores: Count
    ranks: Count
    threads_per_rank: Count
    torch: str
    date: str
    memory: Annotated[ByteCount, Field(gt=0)]
    kernel_latency: Seconds
    matmul: Annotated[tuple[MatmulTiming, ...], Field(min_length=1)]
    copies: Annotated[tuple[CopyTiming, ...], Field(min_length=1)]
    attention: AttentionTiming
    collectives: tuple[CollectiveTiming, ...]
    updates: tuple[CopyTiming, ...] = ()
    operators: tuple[OperatorTiming, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> MeasuredProfile:
        if not any(point.dtype == "float32" for point in self.matmul):
            raise ValueError("matmul has no float32 timing, the reference of the curves")
        if self.ranks > 1 and not any(c.kind == "all_reduce" for c in self.collectives):
            raise ValueError("collectives has no all_reduce timing")
        return self


def load_profile(path: Path) -> MeasuredProfile:
    """Profile in a file; `InputError` with the field path when it is damaged."""
    return read_record(
        path, MeasuredProfile, "measured profile", hint="measure again: autoplan profile"
    )


def _describe(profile: MeasuredProfile) -> str:
    return (
        f"measured {profile.date} on {profile.device_name}, {profile.ranks} ranks of "
        f"{profile.threads_per_rank} threads at once, torch {profile.torch}"
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


def measured_accelerator(profile: MeasuredProfile, base: Accelerator) -> Accelerator:
    """``base`` with the profile's numbers, labelled measured.

    Peaks are the best rates seen. The matmul curve is that of float32, for all types. The
    latency of a small op is taken off before efficiencies are formed, since costs add it.
    """
    latency = profile.kernel_latency

    def net(seconds: float) -> float:
        return max(seconds - latency, 0.1 * seconds)

    peaks: dict[str, float] = {}
    for point in profile.matmul:
        peaks[point.dtype] = max(peaks.get(point.dtype, 0.0), point.flop / point.time)
    float32 = {
        float(point.flop): min(1.0, point.flop / net(point.time) / peaks["float32"])
        for point in profile.matmul
        if point.dtype == "float32"
    }
    bandwidth = max(p.moved / p.time for p in (*profile.copies, *profile.updates))
    copies = {
        float(point.moved): min(1.0, point.moved / net(point.time) / bandwidth)
        for point in profile.copies
    }
    updates = {
        float(point.moved): min(1.0, point.moved / net(point.time) / bandwidth)
        for point in profile.updates
    }
    attention = profile.attention
    attention_peak = peaks.get(attention.dtype, peaks["float32"])
    said = _describe(profile)
    measured = (
        "memory",
        *(f"matmul_peak.{dtype}" for dtype in peaks),
        "matmul_efficiency",
        "attention_efficiency",
        "memory_bandwidth",
        "memory_efficiency",
        *(("update_efficiency",) if updates else ()),
        "kernel_latency",
    )
    kept = tuple(source for source in base.sources if source.field not in measured)
    return replace(
        base,
        memory=profile.memory // profile.ranks,
        matmul_peak=(
            *peaks.items(),
            *((dtype, rate) for dtype, rate in base.matmul_peak if dtype not in peaks),
        ),
        matmul_efficiency=Curve(tuple(sorted(float32.items()))),
        attention_efficiency=min(1.0, attention.flop / net(attention.time) / attention_peak),
        memory_bandwidth=bandwidth,
        memory_efficiency=Curve(tuple(sorted(copies.items()))),
        update_efficiency=Curve(tuple(sorted(updates.items()))) if updates else None,
        kernel_latency=latency,
        operators=measured_operators(profile),
        sources=(*(Source(field, Provenance.MEASURED, said) for field in measured), *kept),
    )


def measured_operators(profile: MeasuredProfile) -> MeasuredOperators | None:
    """The profile's operators that could be timed; None where there are none."""
    timed = {o.signature: (o.forward, o.backward) for o in profile.operators if not o.failure}
    return MeasuredOperators(timed) if timed else None


def measured_link(profile: MeasuredProfile, base: Link) -> Link:
    """``base`` with the profile's collectives as curves, and latency and bandwidth fitted.

    The fit serves group sizes that were not measured: the smallest all_reduce gives the
    latency of its 2(n-1) hops, the largest one the bandwidth.
    """
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for timing in profile.collectives:
        group = groups.setdefault((timing.kind, timing.ranks), [])
        group.append((float(timing.payload), timing.time))
    if not groups:
        return base
    curves = tuple(
        CollectiveCurve(kind, ranks, Curve(_rising(group), extrapolate=True))
        for (kind, ranks), group in groups.items()
    )
    reference = max(
        (c for c in curves if c.kind == CollectiveKind.ALL_REDUCE), key=lambda c: c.ranks
    )
    points = reference.seconds.points
    ranks = reference.ranks
    latency = points[0][1] / (2 * (ranks - 1))
    size, seconds = points[-1]
    busy = max(seconds - points[0][1], 0.1 * seconds)
    said = _describe(profile)
    fields = ("latency", "bandwidth", "measured")
    return replace(
        base,
        latency=latency,
        bandwidth=2 * (ranks - 1) / ranks * size / busy,
        measured=curves,
        sources=tuple(Source(field, Provenance.MEASURED, said) for field in fields),
    )


def apply_profile(cluster: Cluster, profile: MeasuredProfile, *, path: Path) -> Cluster:
    """``cluster`` with the profile's numbers; `InputError` if it is of other hardware."""
    measured = accelerator_file(profile.device).name
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
    if accelerator.memory <= accelerator.reserved:
        raise InputError(f"{path}: memory: {profile.memory} bytes is too little for its ranks")
    intra = measured_link(profile, cluster.intra)
    one_machine = cluster.inter.name == cluster.intra.name
    return replace(
        cluster,
        accelerator=accelerator,
        intra=intra,
        inter=measured_link(profile, cluster.inter) if one_machine else cluster.inter,
    )
