"""What a table of predictions says: errors, and whether the ranking holds.

Ranks are compared within a sweep, since a planner has to choose among plans for one model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "NOISE",
    "Errors",
    "Ranking",
    "attainable_kendall",
    "clear_kendall",
    "errors",
    "kendall",
    "repeat_spread",
    "spearman",
    "sweeps",
]

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
    `NOISE`; zero where there is none. ``attainable`` is the tau that the true means would have.
    """

    rows: int
    rho: float
    tau: float
    clear: int
    clear_tau: float
    attainable: float


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


def repeat_spread(groups: Iterable[Sequence[float]]) -> float:
    """Standard deviation of the logarithm of a time, pooled over groups of repeats; 0 without any.

    Equal values count once: a table that prints a run again does not repeat it.

    >>> round(repeat_spread([[1.0, 1.02], [5.0]]), 4)
    0.014
    """
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in sorted(set(group))]
        if len(logs) > 1:
            mean = statistics.fmean(logs)
            squares += sum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def attainable_kendall(values: Sequence[float], spread: float) -> float:
    """Kendall's tau to expect of the true means against one noisy run of each.

    ``values`` stand for the means, ``spread`` is that of `repeat_spread`. Two runs of plans with
    means a and b keep their order with probability ``phi(|ln(a/b)| / (sqrt(2) spread))``, so a
    pair adds ``erf(|ln(a/b)| / (2 spread))``.
    """
    kept = [
        math.erf(abs(math.log(values[i] / values[j])) / (2 * spread)) if spread else 1.0
        for i in range(len(values))
        for j in range(i)
        if values[i] != values[j]
    ]
    return statistics.fmean(kept)


def sweeps(
    measured: Mapping[str, Sequence[float]],
    predicted: Mapping[str, Sequence[float]],
    *,
    spread: float = 0.0,
) -> dict[str, Ranking]:
    """Ranking of each sweep that is large and varied enough; ``spread`` is that of repeats."""
    return {
        name: _ranking(values, predicted[name], spread)
        for name, values in measured.items()
        if len(values) >= _LEAST_SWEEP and len(set(values)) > 1 and len(set(predicted[name])) > 1
    }


def _ranking(measured: Sequence[float], predicted: Sequence[float], spread: float) -> Ranking:
    clear, clear_tau = clear_kendall(measured, predicted, noise=NOISE)
    return Ranking(
        rows=len(measured),
        rho=spearman(measured, predicted),
        tau=kendall(measured, predicted),
        clear=clear,
        clear_tau=clear_tau,
        attainable=attainable_kendall(measured, spread),
    )


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first: dict[float, int] = {}
    counts: dict[float, int] = {}
    for position, value in enumerate(ordered):
        first.setdefault(value, position)
        counts[value] = counts.get(value, 0) + 1
    return [first[value] + (counts[value] - 1) / 2 for value in values]
