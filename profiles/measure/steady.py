"""Measuring on a machine whose speed may change meanwhile.

Between measurements a reference is timed: how long it takes, relative to its best, is the pace
of the machine. What was measured at a slow pace, or varies too much, is measured again later;
what stays so is kept as it is and says so, since an average of a slow machine and a fast one is
the time of neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["NOISY", "Measured", "Sample", "measure_steadily", "sample_of"]

# Relative spread, or excess of the reference's time, beyond which a timing is in doubt.
NOISY = 0.25
_ROUNDS = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Median seconds of some repeats; ``spread`` is 90th less 10th percentile over the median.

    Or their mean, and then ``spread`` is how far means of as many would lie apart.
    """

    seconds: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """A sample, and the pace it was taken at: 1 at the machine's best, 2 at half that speed."""

    what: T
    sample: Sample
    pace: float

    @property
    def in_doubt(self) -> bool:
        """Whether it varies, or was measured while the machine was slow."""
        return self.sample.spread > NOISY or self.pace > 1.0 + NOISY


def sample_of(times: Sequence[float], *, mean: bool = False) -> Sample:
    """Sample of repeated timings; with ``mean``, that of all but the slowest 5 %.

    >>> sample_of([1.0, 2.0, 3.0])
    Sample(seconds=2.0, spread=1.0, repeats=3)
    """
    ordered = sorted(times)
    last = len(ordered) - 1
    middle = (ordered[last // 2] + ordered[len(ordered) // 2]) / 2
    low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
    seconds, spread = middle, (high - low) / middle
    if mean:
        counted = ordered[: max(1, round(0.95 * len(ordered)))]
        seconds = sum(counted) / len(counted)
        spread = (high - low) / seconds / math.sqrt(len(counted))
    return Sample(seconds=seconds, spread=spread, repeats=len(ordered))


def measure_steadily(
    tasks: Sequence[T],
    measure: Callable[[T], Sample | None],
    reference: Callable[[], float],
    *,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Measured[T], ...]:
    """Measure every task, those in doubt up to twice more; None from ``measure`` leaves one out.

    ``measure`` and ``reference`` give all ranks the same numbers, so that they decide alike.
    """
    best = reference()
    raw: dict[int, tuple[Sample, float]] = {}
    pending = list(range(len(tasks)))
    for attempt in range(_ROUNDS):
        if attempt:
            say(f"again: {len(pending)} timings that vary or fell into a slow spell")
        before = reference()
        for index in pending:
            sample = measure(tasks[index])
            after = reference()
            best = min(best, before, after)
            if sample is not None:
                now = sample, max(before, after)
                raw[index] = min(now, raw.get(index, now), key=lambda s: _doubt(s, best))
            before = after
        pending = [
            i for i, (s, slowest) in raw.items() if _measured(tasks[i], s, slowest, best).in_doubt
        ]
        if not pending:
            break
    return tuple(_measured(tasks[i], *raw[i], best) for i in sorted(raw))


def _doubt(taken: tuple[Sample, float], best: float) -> tuple[float, float]:
    """Order of samples: at a normal pace first, then by spread."""
    sample, slowest = taken
    pace = slowest / best
    return (pace if pace > 1.0 + NOISY else 1.0), sample.spread


def _measured(what: T, sample: Sample, slowest: float, best: float) -> Measured[T]:
    return Measured(what, sample, slowest / best)
