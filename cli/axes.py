"""Values that a sweep varies, from their text: lists and ranges of counts, sizes and clusters."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable

from autoplan.cli.values import positive, size

__all__ = ["MAX_POINTS", "clusters", "counts", "one_cluster", "one_count", "sizes"]

MAX_POINTS = 200
"""Points of a sweep, all axes together."""

# Counts that have a comma or dots, so that they are more than one.
_SEVERAL = r"[\d.,\s-]*[.,][\d.,\s-]*"
_COUNTS = re.compile(rf"^\s*(?:({_SEVERAL})x(.*)|([^:]*):({_SEVERAL}))$", re.IGNORECASE)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1: ``8``, ``1,2,6``, or ``1..64``, doubling from the first.

    The last of a range is always one of them.

    >>> counts("1..8"), counts("3..20"), counts("4,2,4")
    ((1, 2, 4, 8), (3, 6, 12, 20), (4, 2))
    """
    low, dots, high = text.partition("..")
    if not dots:
        return _distinct(positive(part.strip()) for part in text.split(","))
    first, last = positive(low.strip()), positive(high.strip())
    if last < first:
        raise _error(f"{text!r} runs backwards: write {last}..{first}")
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return (*found, last)


def sizes(text: str) -> tuple[int, ...]:
    """Bytes: ``"70 GiB"``, ``40GB,60GB``, or ``40GB..80GB:5``, so many at equal distances.

    >>> sizes("1KB,3KB"), sizes("1KB..2KB:3")
    ((1000, 3000), (1000, 1500, 2000))
    """
    low, dots, rest = text.partition("..")
    if not dots:
        return _distinct(size(part.strip()) for part in text.split(","))
    high, colon, number = rest.partition(":")
    if not colon:
        raise _error(f"{text!r} does not say how many sizes: write {text.strip()}:5")
    first, last, steps = size(low.strip()), size(high.strip()), positive(number.strip())
    if last <= first:
        raise _error(f"{text!r} is no range from low to high")
    if not 2 <= steps <= MAX_POINTS:
        raise _error(f"{text!r}: a range has 2 to {MAX_POINTS} sizes, {steps} asked")
    return _distinct(first + round((last - first) * step / (steps - 1)) for step in range(steps))


def clusters(text: str) -> tuple[str, ...]:
    """Clusters of a text with a list or range of counts in front, or behind a colon.

    >>> clusters("1..4x8xh100"), clusters("cpu:1,2"), clusters("8xh100")
    (('1x8xh100', '2x8xh100', '4x8xh100'), ('cpu:1', 'cpu:2'), ('8xh100',))
    """
    match = None if text.lower().endswith(".json") else _COUNTS.match(text)
    if match is None:
        return (text,)
    first, rest, name, last = match.groups()
    if first is None:
        return tuple(f"{name}:{count}" for count in counts(last))
    return tuple(f"{count}x{rest}" for count in counts(first))


def one_cluster(text: str) -> str:
    """Text of a single cluster, as yet unchecked."""
    if clusters(text) != (text,):
        raise _error(f"{text!r} is more than one cluster: autoplan sweep compares them")
    return text


def one_count(text: str) -> int:
    """A single whole number of at least 1."""
    if "," in text or ".." in text:
        raise _error(f"{text!r} is more than one number: autoplan sweep compares them")
    return positive(text)


def _distinct(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))


def _error(message: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(message)
