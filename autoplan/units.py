"""Constants and text of quantities; the only module that converts from SI base units."""

from __future__ import annotations

import re

__all__ = [
    "GB",
    "TB",
    "TFLOP",
    "GiB",
    "KiB",
    "MiB",
    "format_bandwidth",
    "format_bytes",
    "format_count",
    "format_flop_rate",
    "format_time",
    "parse_bandwidth",
    "parse_bytes",
    "parse_flop_rate",
    "parse_sample_rate",
    "parse_time",
]

KiB = 2**10
MiB = 2**20
GiB = 2**30
GB = 10**9
TB = 10**12
TFLOP = 10**12

_BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": GB, "TB": TB,
    "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": 2**40,
}  # fmt: skip
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_FLOP_RATE = {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]+)\s*$")


def _parse(text: str, scale: dict[str, float] | dict[str, int], what: str) -> float:
    match = _NUMBER.match(text)
    if match is None or match[2] not in scale:
        raise ValueError(f"{text!r} is not {what}; write a number and one of {', '.join(scale)}")
    return float(match[1]) * scale[match[2]]


def parse_bytes(text: str) -> int:
    """Bytes of e.g. ``"80 GiB"``.

    >>> parse_bytes("1.5 KiB")
    1536
    """
    return round(_parse(text, _BYTES, "a size"))


def parse_bandwidth(text: str) -> float:
    """Bytes/s of e.g. ``"450 GB/s"``."""
    scale = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
    return _parse(text, scale, "a bandwidth")


def parse_time(text: str) -> float:
    """Seconds of e.g. ``"12 us"``."""
    return _parse(text, _TIME, "a time")


def parse_flop_rate(text: str) -> float:
    """FLOP/s of e.g. ``"989 TFLOP/s"``."""
    return _parse(text, _FLOP_RATE, "a FLOP rate")


def parse_sample_rate(text: str) -> float:
    """Samples/s of e.g. ``"1200 samples/s"``."""
    return _parse(text, {"samples/s": 1.0}, "a rate of samples")


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_bytes(size: float) -> str:
    """Memory with three digits, binary units.

    >>> format_bytes(80 * GiB)
    '80.0 GiB'
    """
    for unit, factor in (("TiB", 2**40), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(size) >= factor:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{size:.0f} B"


def format_time(seconds: float) -> str:
    """Time with three digits.

    >>> format_time(0.0123)
    '12.3 ms'
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{seconds / 1e-9:.0f} ns" if seconds else "0 s"


def format_bandwidth(rate: float) -> str:
    """Link or memory bandwidth in GB/s (or TB/s)."""
    if rate >= TB:
        return f"{_three_digits(rate / TB)} TB/s"
    return f"{_three_digits(rate / GB)} GB/s"


def format_flop_rate(rate: float) -> str:
    """Compute rate in TFLOP/s (GFLOP/s when small)."""
    if rate >= TFLOP:
        return f"{_three_digits(rate / TFLOP)} TFLOP/s"
    return f"{_three_digits(rate / 1e9)} GFLOP/s"


def format_count(count: float) -> str:
    """A plain count with three digits and k, M, G or T.

    >>> format_count(8_030_000_000)
    '8.03 G'
    """
    for unit, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(count) >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return f"{count:.0f}"
