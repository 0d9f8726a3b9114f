"""Values of options from their text; argparse shows the error of one that can't be."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from pathlib import Path

from autoplan.units import parse_bytes, parse_sample_rate

__all__ = [
    "assignment",
    "count",
    "degrees",
    "loader_rate",
    "one_of",
    "positive",
    "positives",
    "price",
    "seconds",
    "share",
    "size",
    "some_of",
]


def one_of(*choices: str) -> Callable[[str], str]:
    """Converter that takes one of some words and names the nearest for others."""

    def convert(text: str) -> str:
        if text in choices:
            return text
        near = difflib.get_close_matches(text, choices, n=1)
        suffix = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}{suffix}")

    return convert


def some_of(*choices: str) -> Callable[[str], str | None]:
    """Converter of a comma list of some words; none of them for ``auto``."""
    convert = one_of(*choices)

    def convert_all(text: str) -> str | None:
        return None if text == "auto" else ",".join(convert(p.strip()) for p in text.split(","))

    return convert_all


def degrees(text: str) -> str | None:
    """A comma list of whole numbers of at least 1, as text; none for ``auto``."""
    return None if text == "auto" else ",".join(map(str, positives(text)))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def count(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """A comma list of whole numbers of at least 1."""
    return tuple(positive(part.strip()) for part in text.split(","))


def seconds(text: str) -> float:
    """A time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def price(text: str) -> float:
    """An amount of money above 0, in any currency."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price above 0: write 2.5")
    return value


def size(text: str) -> int:
    """Bytes, with a unit or without."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than one byte")
    return size


def loader_rate(text: str) -> float | Path:
    """Samples a second, or the file of a measurement."""
    if text.lower().endswith(".json"):
        return Path(text)
    try:
        rate = parse_sample_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, or name a .json file") from error
    if not 0.0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return rate


def assignment(text: str) -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def share(text: str) -> float:
    """A part of a whole, as a fraction or in percent."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 1, like 1%")
    return value
