"""Measured profiles: what one machine really does, and its use in place of the catalogue.

A profile is one JSON file (`MeasuredProfile`), written by `autoplan.profiles.measure`. All
rates in it are those of one rank while all ``ranks`` of the machine work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from autoplan.ir.hardware import (
    Accelerator,
    Curve,
    HostConvolutions,
    MeasuredOperators,
    Provenance,
    RecomputeWork,
    Source,
)
from autoplan.ir.overlap import SlowDown
from autoplan.profiles.plausible import check_ranges, check_units
from autoplan.profiles.residuals import Residual
from autoplan.profiles.schema import (
    Bandwidth,
    ByteCount,
    MaybeNoTime,
    Pace,
    Record,
    Repeats,
    Seconds,
    Spread,
    read_record,
)
from autoplan.profiles.wrappers import RecomputeTiming, UnitTiming

__all__ = [
    "NOISY",
    "AttentionTiming",
    "CollectiveFit",
    "CollectiveTiming",
    "CopyTiming",
    "FitRegime",
    "Kind",
    "MatmulTiming",
    "MeasuredProfile",
    "OperatorTiming",
    "OverlapTiming",
    "Where",
    "describe",
    "load_profile",
    "measured_accelerator",
    "measured_operators",
]

Count = Annotated[int, Field(ge=1, le=10**15)]

NOISY = 0.25


class MatmulTiming(Record):
    """One (m x k) by (k x n) matmul."""

    dtype: str
    shape: tuple[Count, Count, Count]
    time: Seconds
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0

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
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0


class AttentionTiming(Record):
    """One fused attention without a mask, forward."""

    dtype: str
    flop: Count
    time: Seconds
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0


Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
Where = Literal["node", "across"]


class CollectiveTiming(Record):
    """One collective; ``payload`` as in the cost model: bytes of the whole tensor.

    ``level`` tells whether the ranks of a group are on one host.
    """

    kind: Kind
    level: Where = "node"
    ranks: Annotated[int, Field(ge=2)]
    payload: Annotated[ByteCount, Field(gt=0)]
    time: Seconds
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0


class FitRegime(Record):
    """``latency`` + payload / ``bandwidth`` up to a payload; none is without end."""

    up_to: ByteCount | None = None
    latency: MaybeNoTime
    bandwidth: Bandwidth | None = None


class CollectiveFit(Record):
    """What the timings of a kind on a group come to, and how far they are off, relatively."""

    kind: Kind
    level: Where = "node"
    ranks: Annotated[int, Field(ge=2)]
    regimes: Annotated[tuple[FitRegime, ...], Field(min_length=1)]
    max_error: Annotated[float, Field(ge=0)]
    rms_error: Annotated[float, Field(ge=0)]


class OverlapTiming(Record):
    """A matmul and an all_reduce, each alone and while the other runs all the time."""

    compute_alone: Seconds
    compute_beside: Seconds
    network_alone: Seconds
    network_beside: Seconds
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0

    @property
    def slow_down(self) -> SlowDown:
        """Factors of both; never below 1, which only noise could say."""
        return SlowDown(
            compute=max(1.0, self.compute_beside / self.compute_alone),
            network=max(1.0, self.network_beside / self.network_alone),
        )


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


T = TypeVar("T", MatmulTiming, CopyTiming, CollectiveTiming)


def _series(
    timings: Sequence[T], key: Callable[[T], str], amount: Callable[[T], int]
) -> list[list[tuple[int, float, float]]]:
    """(index, amount, seconds) of timings of one kind each; those in doubt are told elsewhere."""
    groups: dict[str, list[tuple[int, float, float]]] = {}
    for index, timing in enumerate(timings):
        if timing.spread <= NOISY and timing.pace <= 1.0 + NOISY:
            groups.setdefault(key(timing), []).append((index, float(amount(timing)), timing.time))
    return list(groups.values())


class MeasuredProfile(Record):
    """What was measured on one machine, and on what machine."""

    schema_version: Literal[2]
    device: str
    device_name: str
    cores: Count
    ranks: Count
    threads_per_rank: Count
    hosts: Count = 1
    driver: str = ""
    convolution_lanes: Count | None = None
    torch: str
    date: str
    memory: Annotated[ByteCount, Field(gt=0)]
    kernel_latency: Seconds
    dispatch_latency: Seconds | None = None
    matmul: Annotated[tuple[MatmulTiming, ...], Field(min_length=1)]
    copies: Annotated[tuple[CopyTiming, ...], Field(min_length=1)]
    attention: AttentionTiming
    collectives: tuple[CollectiveTiming, ...]
    updates: tuple[CopyTiming, ...] = ()
    residuals: tuple[Residual, ...] = ()
    fits: tuple[CollectiveFit, ...] = ()
    overlap: OverlapTiming | None = None
    units: tuple[UnitTiming, ...] = ()
    recompute: tuple[RecomputeTiming, ...] = ()
    operators: tuple[OperatorTiming, ...] = ()
    out_of_memory: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _is_current(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("schema_version") == 1:
            raise ValueError(
                "schema_version 1 tells neither spreads nor overlap: this release reads version 2"
            )
        return data

    @model_validator(mode="after")
    def _check(self) -> MeasuredProfile:
        if not any(point.dtype == "float32" for point in self.matmul):
            raise ValueError("matmul has no float32 timing, the reference of the curves")
        if self.ranks > 1 and not any(c.kind == "all_reduce" for c in self.collectives):
            raise ValueError("collectives has no all_reduce timing")
        for field, every in (
            ("matmul", _series(self.matmul, lambda t: t.dtype, lambda t: t.flop)),
            ("copies", _series(self.copies, lambda t: "", lambda t: t.moved)),
            ("updates", _series(self.updates, lambda t: "", lambda t: t.moved)),
            (
                "collectives",
                _series(
                    self.collectives,
                    lambda t: f"{t.kind} {t.level} {t.ranks}",
                    lambda t: t.payload,
                ),
            ),
        ):
            for one in every:
                check_units(field, one)
        check_ranges(_figures(self))
        seen: set[str] = set()
        for operator in self.operators:
            if operator.signature in seen:
                raise ValueError(f"operators has {operator.signature[:60]} twice")
            seen.add(operator.signature)
        return self


def _figures(profile: MeasuredProfile) -> dict[str, float]:
    """Figures that tell a section in another unit from the others, by names of `RANGES`."""
    matmul = max(t.flop / t.time for t in profile.matmul)
    memory = max(t.moved / t.time for t in (*profile.copies, *profile.updates))
    timed = [t.time for t in profile.matmul]
    timed += [t.time for t in (*profile.copies, *profile.updates)]
    figures = {
        "best matmul over best memory bandwidth, FLOP/B": matmul / memory,
        "attention over best matmul": profile.attention.flop / profile.attention.time / matmul,
        "kernel_latency over the shortest timing": profile.kernel_latency / min(timed),
        "memory of a rank, B": profile.memory / profile.ranks,
    }
    if profile.collectives:
        best = max(t.payload / t.time for t in profile.collectives)
        figures["best collective over memory bandwidth"] = best / memory
    if profile.dispatch_latency is not None:
        figures["dispatch_latency, s"] = profile.dispatch_latency
    if (overlap := profile.overlap) is not None:
        figures["kernels beside collectives over alone"] = (
            overlap.compute_beside / overlap.compute_alone
        )
        figures["collectives beside kernels over alone"] = (
            overlap.network_beside / overlap.network_alone
        )
    if profile.operators:
        figures["an operator, s"] = max(max(o.forward, o.backward) for o in profile.operators)
    return figures


def describe(profile: MeasuredProfile) -> str:
    """When, where and with what a profile was measured."""
    driver = f"driver {profile.driver}, " if profile.driver else ""
    return (
        f"measured {profile.date} on {profile.device_name}, {profile.ranks} ranks of "
        f"{profile.threads_per_rank} threads at once, {driver}torch {profile.torch}"
    )


def load_profile(path: Path) -> MeasuredProfile:
    """Profile in a file; `InputError` with the field path when it is damaged."""
    return read_record(
        path, MeasuredProfile, "measured profile", hint="measure again: autoplan profile"
    )


def measured_accelerator(profile: MeasuredProfile, base: Accelerator) -> Accelerator:
    """``base`` with the profile's numbers, labelled measured.

    Peaks are the best rates seen. The matmul curve is that of one type, for all: float32 on a
    CPU, on an accelerator the faster type of 16 bits. The latency of a small op is taken off
    before efficiencies are formed, since costs add it.
    """
    latency = profile.kernel_latency

    def net(seconds: float) -> float:
        return max(seconds - latency, 0.1 * seconds)

    peaks: dict[str, float] = {}
    for point in profile.matmul:
        peaks[point.dtype] = max(peaks.get(point.dtype, 0.0), point.flop / point.time)
    halves = [dtype for dtype in ("bfloat16", "float16") if dtype in peaks]
    curve_of = "float32"
    if halves and not base.synchronous:
        curve_of = max(halves, key=peaks.__getitem__)
    rates = {
        float(point.flop): min(1.0, point.flop / net(point.time) / peaks[curve_of])
        for point in profile.matmul
        if point.dtype == curve_of
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
    said = describe(profile)
    measured = (
        "memory",
        *(f"matmul_peak.{dtype}" for dtype in peaks),
        "matmul_efficiency",
        "attention_efficiency",
        "memory_bandwidth",
        "memory_efficiency",
        *(("update_efficiency",) if updates else ()),
        "kernel_latency",
        *(("dispatch_latency",) if profile.dispatch_latency else ()),
        *(("compute_slow_down", "network_slow_down") if profile.overlap else ()),
        *(("recompute",) if profile.recompute else ()),
        *(("convolution_lanes",) if profile.convolution_lanes else ()),
    )
    kept = tuple(source for source in base.sources if source.field not in measured)
    return replace(
        base,
        memory=profile.memory // profile.ranks,
        matmul_peak=(
            *peaks.items(),
            *((dtype, rate) for dtype, rate in base.matmul_peak if dtype not in peaks),
        ),
        matmul_efficiency=Curve(tuple(sorted(rates.items()))),
        attention_efficiency=min(1.0, attention.flop / net(attention.time) / attention_peak),
        memory_bandwidth=bandwidth,
        memory_efficiency=Curve(tuple(sorted(copies.items()))),
        update_efficiency=Curve(tuple(sorted(updates.items()))) if updates else None,
        kernel_latency=latency,
        dispatch_latency=profile.dispatch_latency or base.dispatch_latency,
        operators=measured_operators(profile),
        recompute={
            timing.level: RecomputeWork(
                forward=timing.forward,
                backward=timing.backward,
                block_forward=timing.block_forward,
                block_backward=timing.block_backward,
            )
            for timing in profile.recompute
        },
        convolutions=_convolutions(profile, base),
        slow_down=base.slow_down if profile.overlap is None else profile.overlap.slow_down,
        sources=(*(Source(field, Provenance.MEASURED, said) for field in measured), *kept),
    )


def _convolutions(profile: MeasuredProfile, base: Accelerator) -> HostConvolutions | None:
    if base.convolutions is None:
        return None
    lanes = profile.convolution_lanes or base.convolutions.lanes
    return HostConvolutions(lanes, profile.threads_per_rank)


def measured_operators(profile: MeasuredProfile) -> MeasuredOperators | None:
    """The profile's operators that could be timed; None where there are none."""
    timed = {o.signature: (o.forward, o.backward) for o in profile.operators if not o.failure}
    return MeasuredOperators(timed) if timed else None
