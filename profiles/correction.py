"""What runs say about a cluster's numbers themselves, so that the search prices plans by it.

A step is ``k * kernels + c * collectives``: kernels are compute, recompute, optimizer and the
bubbles that are other stages' kernels; collectives are what is exposed of tensor, data and
pipeline parallelism. Runs of a model give ``k`` and ``c`` by least squares of relative errors
where their shares of collectives differ enough to tell the two apart, and ``k`` alone where
collectives are a small part of every run. Otherwise one factor would hold for both: it changes
no ranking and is left to `residuals`. Exposed collectives are taken as proportional to their
links' time, which what hides behind kernels isn't: a first-order correction.

The largest excess of a run's memory over its prediction is taken off the memory that plans may use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoplan.ir.hardware import (
    Accelerator,
    Cluster,
    CollectiveCurve,
    Curve,
    HostWork,
    Level,
    Link,
    UnitWork,
)
from autoplan.ir.plan import CorrectionRecord
from autoplan.profiles.residuals import Residual

__all__ = ["correct_cluster", "correction_note", "fit_correction", "why_not_corrected"]

_SMALL = 0.1
"""Share of collectives up to which a run tells of kernels alone, and by which runs must differ."""

_LIMIT = 4.0
"""A factor beyond this, or below its inverse, is no residual: something else is wrong."""


def fit_correction(
    residuals: Sequence[Residual], *, model: str, hardware: str, dtype: str
) -> CorrectionRecord | None:
    """Correction by the runs of a model on its hardware; None where they say nothing."""
    runs = _bearing(residuals, model, hardware, dtype)
    factors = _factors(runs)
    excess = max(
        (r.peak_memory - r.predicted_peak_memory for r in runs if r.peak_memory is not None),
        default=0,
    )
    if factors is None and excess <= 0:
        return None
    kernels, collectives = factors or (1.0, 1.0)
    return CorrectionRecord(
        runs=len(runs), kernels=kernels, collectives=collectives, reserved=max(0, excess)
    )


def why_not_corrected(
    residuals: Sequence[Residual], *, model: str, hardware: str, dtype: str
) -> str:
    """Why the times of the search are not corrected; empty where they are, or nothing was run."""
    runs = _bearing(residuals, model, hardware, dtype)
    if not runs or _factors(runs) is not None:
        return ""
    shares = [_share(run) for run in runs]
    if max(shares) - min(shares) >= _SMALL or max(shares) < _SMALL:
        return (
            f"{len(runs)} run(s) are off by more than {_LIMIT:g} times: not used for the search; "
            "look for what differs from the plan"
        )
    return (
        f"kernels and collectives can't be told apart by {len(runs)} run(s), whose collectives are "
        f"{min(shares):.0%} to {max(shares):.0%} of the step: the ranking stays the model's; run "
        "a plan with more or fewer and calibrate"
    )


def _bearing(
    residuals: Sequence[Residual], model: str, hardware: str, dtype: str
) -> list[Residual]:
    key = (model, hardware, dtype)
    return [r for r in residuals if r.parts and (r.model, r.hardware, r.dtype) == key]


def _share(run: Residual) -> float:
    assert run.parts is not None
    return run.parts.collectives / (run.parts.kernels + run.parts.collectives)


def _factors(runs: Sequence[Residual]) -> tuple[float, float] | None:
    if not runs:
        return None
    parts = [(r.parts.kernels, r.parts.collectives) for r in runs if r.parts is not None]
    times = np.array([run.step_time for run in runs])
    columns = np.array(parts) / times[:, None]
    shares = [_share(run) for run in runs]
    if max(shares) - min(shares) >= _SMALL:
        found = np.linalg.lstsq(columns, np.ones(len(runs)), rcond=None)[0]
        kernels, collectives = map(float, found)
    elif max(shares) < _SMALL:
        left = 1.0 - columns[:, 1]
        kernels, collectives = float(columns[:, 0] @ left / (columns[:, 0] @ columns[:, 0])), 1.0
    else:
        return None
    if any(not 1 / _LIMIT <= factor <= _LIMIT for factor in (kernels, collectives)):
        return None
    return kernels, collectives


def correction_note(correction: CorrectionRecord) -> str:
    """What was changed before the search."""
    runs = "1 run" if correction.runs == 1 else f"{correction.runs} runs"
    changes = []
    if correction.kernels != 1.0 or correction.collectives != 1.0:
        changes.append(f"kernels x{correction.kernels:.3g}")
        changes.append(
            f"collectives x{correction.collectives:.3g}"
            if correction.collectives != 1.0
            else "collectives as predicted, of which these runs have few"
        )
    if correction.reserved:
        changes.append(f"{correction.reserved / 2**30:.3g} GiB more reserved")
    return f"the search prices plans as corrected by {runs} of this model: {', '.join(changes)}"


def correct_cluster(cluster: Cluster, correction: CorrectionRecord) -> Cluster:
    """``cluster`` with times and memory corrected; its digests stay those of ``cluster``."""
    kernels, collectives = correction.kernels, correction.collectives
    return replace(
        cluster,
        accelerator=_slower(cluster.accelerator, kernels, collectives, correction.reserved),
        intra=_slower_link(cluster.intra, collectives),
        inter=_slower_link(cluster.inter, collectives),
        outer=tuple(_slower_level(level, collectives) for level in cluster.outer),
        uncorrected=cluster,
    )  # fmt: skip


def _slower(device: Accelerator, kernels: float, collectives: float, reserved: int) -> Accelerator:
    tiles = device.matmul_tiles
    return replace(
        device,
        matmul_peak=tuple((dtype, rate / kernels) for dtype, rate in device.matmul_peak),
        memory_bandwidth=device.memory_bandwidth / kernels,
        kernel_latency=device.kernel_latency * kernels,
        dispatch_latency=device.dispatch_latency * kernels,
        matmul_tiles=tiles and replace(tiles, overhead=tiles.overhead * kernels),
        operators=device.operators and device.operators.scaled(kernels),
        units=device.units
        and UnitWork(
            unpack=_slower_work(device.units.unpack, collectives),
            pack=_slower_work(device.units.pack, collectives),
        ),
        recompute={
            level: replace(
                work,
                forward=work.forward * kernels,
                backward=work.backward * kernels,
                block_forward=work.block_forward * kernels,
                block_backward=work.block_backward * kernels,
            )
            for level, work in device.recompute.items()
        },
        reserved=device.reserved + reserved,
    )


def _slower_work(work: HostWork, factor: float) -> HostWork:
    return HostWork(
        fixed=work.fixed * factor,
        per_tensor=work.per_tensor * factor,
        per_byte=work.per_byte * factor,
    )


def _slower_level(level: Level, factor: float) -> Level:
    return level if level.link is None else replace(level, link=_slower_link(level.link, factor))


def _slower_link(link: Link, factor: float) -> Link:
    return replace(
        link,
        latency=link.latency * factor,
        bandwidth=link.bandwidth / factor,
        measured=tuple(
            CollectiveCurve(
                curve.kind,
                curve.ranks,
                Curve(
                    tuple((x, seconds * factor) for x, seconds in curve.seconds.points),
                    extrapolate=curve.seconds.extrapolate,
                ),
            )
            for curve in link.measured
        ),
    )
