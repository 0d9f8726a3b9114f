"""What a table of predictions says: errors, and whether the ranking holds.

Ranks are compared within a sweep, since a planner has to choose among plans for one model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["NOISE", "Errors", "Ranking", "clear_kendall", "errors", "kendall", "spearman", "sweeps"]

_LEAST_SWEEP = 4  # fewer rows say nothing about a ranking
# Measured times that are closer may be in their order by chance. Between what repeats of a plan in
# bloom_prequel differ by within a period of the source (0.06 to 2.8 %, six plans; most are bl-093
# and bl-094) and over all its days (median 5.4 %, 11 plans).
NOISE = 0.04


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Correlation of the ranks of a sweep's rows, measured and predicted.

    ``clear_tau`` is Kendall's over the ``clear`` pairs whose measured values differ by more than
    `NOISE`; zero where there is none.
    """

    rows: int
    rho: float
    tau: float
    clear: int
    clear_tau: float


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
    return (same - other) / math.sqrt((untied + tied_left) * (untied + tied_right))


def clear_kendall(
    measured: Sequence[float], predicted: Sequence[float], *, noise: float
) -> tuple[int, float]:
    """Pairs whose measured values differ by more than ``noise``, and Kendall's tau over them.

    >>> clear_kendall([1.0, 1.01, 2.0], [2.0, 1.0, 3.0], noise=0.04)
    (2, 1.0)
    """
    pairs = score = 0
    for i in range(len(measured)):
        for j in range(i):
            low, high = sorted((measured[i], measured[j]))
            if high > (1 + noise) * low:
                pairs += 1
                order = (measured[i] - measured[j]) * (predicted[i] - predicted[j])
                score += (order > 0) - (order < 0)
    return pairs, score / pairs if pairs else 0.0


def sweeps(
    measured: Mapping[str, Sequence[float]], predicted: Mapping[str, Sequence[float]]
) -> dict[str, Ranking]:
    """Ranking of each sweep that is large and varied enough."""
    return {
        name: _ranking(values, predicted[name])
        for name, values in measured.items()
        if len(values) >= _LEAST_SWEEP and len(set(values)) > 1 and len(set(predicted[name])) > 1
    }


def _ranking(measured: Sequence[float], predicted: Sequence[float]) -> Ranking:
    clear, clear_tau = clear_kendall(measured, predicted, noise=NOISE)
    return Ranking(
        rows=len(measured),
        rho=spearman(measured, predicted),
        tau=kendall(measured, predicted),
        clear=clear,
        clear_tau=clear_tau,
    )


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first: dict[float, int] = {}
    counts: dict[float, int] = {}
    for position, value in enumerate(ordered):
        first.setdefault(value, position)
        counts[value] = counts.get(value, 0) + 1
    return [first[value] + (counts[value] - 1) / 2 for value in values]
