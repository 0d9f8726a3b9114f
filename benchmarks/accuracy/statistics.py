"""What a table of predictions says: errors, and whether the ranking holds.

Ranks are compared within a sweep, since a planner has to choose among plans for one model.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Errors", "errors", "kendall", "spearman", "sweeps"]

_LEAST_SWEEP = 4  # fewer rows say nothing about a ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of a group of rows."""

    rows: int
    median: float
    mean: float
    bias: float


def errors(relative: Sequence[float]) -> Errors:
    """Median and mean of the sizes of relative errors, and their mean with sign."""
    sizes = [abs(error) for error in relative]
    return Errors(
        rows=len(sizes),
        median=statistics.median(sizes),
        mean=statistics.fmean(sizes),
        bias=statistics.fmean(relative),
    )


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Correlation of ranks; equal values share their mean rank.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    return statistics.correlation(_ranks(left), _ranks(right))


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Kendall's tau-b: pairs in the same order less those in the other, over all untied.

    >>> kendall([1, 2, 3], [10, 20, 30])
    1.0
    """
    same = other = tied_left = tied_right = 0
    for i in range(len(left)):
        for j in range(i):
            a, b = left[i] - left[j], right[i] - right[j]
            if a * b > 0:
                same += 1
            elif a * b < 0:
                other += 1
            else:
                tied_left += a == 0 and b != 0
                tied_right += b == 0 and a != 0
    untied = same + other
    return (same - other) / ((untied + tied_left) * (untied + tied_right)) ** 0.5


def sweeps(
    measured: Mapping[str, Sequence[float]], predicted: Mapping[str, Sequence[float]]
) -> dict[str, tuple[int, float, float]]:
    """Rows, Spearman's and Kendall's correlation of each sweep that is large and varied enough."""
    return {
        name: (len(values), spearman(values, predicted[name]), kendall(values, predicted[name]))
        for name, values in measured.items()
        if len(values) >= _LEAST_SWEEP and len(set(values)) > 1 and len(set(predicted[name])) > 1
    }


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first: dict[float, int] = {}
    counts: dict[float, int] = {}
    for position, value in enumerate(ordered):
        first.setdefault(value, position)
        counts[value] = counts.get(value, 0) + 1
    return [first[value] + (counts[value] - 1) / 2 for value in values]
