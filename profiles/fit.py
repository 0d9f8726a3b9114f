"""Latency and bandwidth of a collective from its timings, with what they leave unexplained.

One line ``latency + payload / bandwidth`` does not hold from KiB to GiB: libraries change
their protocol on the way. So timings are fitted by one line, or by one for small payloads and
one for large ones, split where the squares of the relative errors add up to least. Two lines
are taken only if they explain more than their three further numbers would of mere noise (the
residual variance per degree of freedom decides).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Fit", "Regime", "fit_timings"]

# Relative variance below which timings lie on a line, rounding aside.
_EXACT = 1e-12

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """``latency + payload * per_byte`` seconds for payloads up to ``up_to`` bytes."""

    up_to: float
    latency: float
    per_byte: float

    def seconds(self, payload: float) -> float:
        """Seconds of a payload."""
        return self.latency + payload * self.per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Regimes by rising payload, the last without end, and their relative errors."""

    regimes: tuple[Regime, ...]
    max_error: float
    rms_error: float

    def seconds(self, payload: float) -> float:
        """Seconds of a payload; more bytes never take less time, whichever the regime."""
        seconds = 0.0
        for regime in self.regimes:
            seconds = max(seconds, regime.seconds(min(payload, regime.up_to)))
            if payload <= regime.up_to:
                break
        return seconds


def fit_timings(points: Points) -> Fit:
    """Fit of ``(payload, seconds)``, at least one, by least squares of relative errors."""
    points = sorted(points)
    whole = _line(points)
    best: tuple[Regime, ...] = (whole,)
    variance = _variance([whole], [points], free=len(points) - 2)
    for cut in range(2, len(points) - 1):
        parts = points[:cut], points[cut:]
        lines = [_line(part) for part in parts]
        found = _variance(lines, parts, free=len(points) - 5)
        if found < variance and variance > _EXACT:
            up_to = points[cut - 1][0]
            first = Regime(up_to=up_to, latency=lines[0].latency, per_byte=lines[0].per_byte)
            best, variance = (first, lines[1]), found
    fit = Fit(regimes=best, max_error=0.0, rms_error=0.0)
    errors = [fit.seconds(x) / y - 1.0 for x, y in points]
    return Fit(
        regimes=best,
        max_error=max(abs(error) for error in errors),
        rms_error=math.sqrt(sum(error**2 for error in errors) / len(errors)),
    )


def _variance(lines: Sequence[Regime], parts: Sequence[Points], *, free: int) -> float:
    squares = sum(
        (line.seconds(x) / y - 1.0) ** 2
        for line, part in zip(lines, parts, strict=True)
        for x, y in part
    )
    return squares / free if free > 0 else math.inf


def _line(points: Points) -> Regime:
    """Line with the least squares of relative errors; neither number is negative."""
    # Minimise sum (a u + b v - 1)^2 with u = 1 / y and v = x / y.
    uu = sum(1.0 / y**2 for _, y in points)
    uv = sum(x / y**2 for x, y in points)
    vv = sum((x / y) ** 2 for x, y in points)
    u = sum(1.0 / y for _, y in points)
    v = sum(x / y for x, y in points)
    determinant = uu * vv - uv**2
    latency = per_byte = -1.0
    if determinant > 1e-12 * uu * vv:
        latency = (u * vv - v * uv) / determinant
        per_byte = (v * uu - u * uv) / determinant
    if (latency < 0.0 and per_byte < 0.0) or latency < 0.0:  # one payload only
        latency, per_byte = 0.0, v / vv
    elif per_byte < 0.0:
        latency, per_byte = u / uu, 0.0
    return Regime(up_to=math.inf, latency=latency, per_byte=per_byte)
