"""Plans that runs share: what a ranking ranks, how far repeats spread, which pairs are wrong."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.accuracy.published import Compared
from benchmarks.accuracy.statistics import Ranking, repeat_spread, sweeps

__all__ = ["Pair", "Plan", "discordant", "noise_of", "plans", "rankings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Runs of one plan of one model, with seconds a sample: a larger batch takes longer anyway."""

    sweep: str
    runs: tuple[Compared, ...]

    @property
    def measured(self) -> float:
        """Median over the runs."""
        return statistics.median(run.row.step_time for run in self.runs) / self._batch

    @property
    def predicted(self) -> float:
        """That of the first, which is that of all."""
        return self.runs[0].priced.step_time / self._batch

    @property
    def _batch(self) -> int:
        return max(1, self.runs[0].row.global_batch)

    @property
    def layout(self) -> dict[str, int]:
        """What may distinguish it from another plan of its sweep."""
        row = self.runs[0].row
        return {
            "pp": row.pp,
            "dp": row.dp,
            "tp": row.tp,
            "mb": row.micro_batch,
            "batch": row.global_batch,
            "ranks": row.ranks,
            "length": row.seq_len,
            "heads": row.heads,
            "hidden": row.hidden,
            "layers": row.layers,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two plans of a sweep whose predictions are in the wrong order: ``fast`` measured faster."""

    fast: Plan
    slow: Plan

    @property
    def measured(self) -> float:
        """By how much longer the slower took, relative."""
        return self.slow.measured / self.fast.measured - 1

    @property
    def predicted(self) -> float:
        """The same as predicted: zero or less."""
        return self.slow.predicted / self.fast.predicted - 1

    @property
    def differs(self) -> str:
        """Where their layouts differ, the faster one's first."""
        fast, slow = self.fast.layout, self.slow.layout
        return ", ".join(f"{n} {fast[n]} : {slow[n]}" for n in fast if fast[n] != slow[n])


def plans(rows: Sequence[Compared], sweep: Callable[[Compared], str]) -> list[Plan]:
    """Rows of one plan of one model together, those with a step time."""
    found: dict[tuple[object, ...], list[Compared]] = defaultdict(list)
    for row in rows:
        if row.row.step_time:
            plan = row.priced.configuration
            found[sweep(row), plan, row.row.ranks, row.priced.step_time].append(row)
    return [Plan(sweep=sweep(runs[0]), runs=tuple(runs)) for runs in found.values()]


def noise_of(rows: Sequence[Compared]) -> float:
    """Relative spread of repeats within a sweep; 0 where no plan ran twice."""
    return repeat_spread(
        [run.row.step_time for run in plan.runs] for plan in plans(rows, lambda row: row.row.sweep)
    )


def rankings(rows: Sequence[Compared]) -> dict[str, Ranking]:
    """Ranking of each sweep, and where a source has periods, those over all of them as well."""
    found = _rankings(rows, lambda row: row.row.sweep, noise_of(rows))
    if any(row.row.period for row in rows):
        whole = _rankings(rows, lambda row: row.row.whole_sweep, noise_of(rows))
        found |= {f"{name}, all periods": ranking for name, ranking in whole.items()}
    return found


def _rankings(
    rows: Sequence[Compared], sweep: Callable[[Compared], str], spread: float
) -> dict[str, Ranking]:
    measured: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, list[float]] = defaultdict(list)
    for plan in plans(rows, sweep):
        measured[plan.sweep].append(plan.measured)
        predicted[plan.sweep].append(plan.predicted)
    return sweeps(measured, predicted, spread=spread)


def discordant(rows: Sequence[Compared]) -> Iterator[Pair]:
    """Pairs of a sweep in the wrong order, by sweep and then by the measured difference."""
    by_sweep: dict[str, list[Plan]] = defaultdict(list)
    for plan in plans(rows, lambda row: row.row.sweep):
        by_sweep[plan.sweep].append(plan)
    for group in by_sweep.values():
        wrong = []
        for pair in itertools.combinations(group, 2):
            fast, slow = sorted(pair, key=lambda plan: plan.measured)
            if fast.measured < slow.measured and fast.predicted >= slow.predicted:
                wrong.append(Pair(fast=fast, slow=slow))
        yield from sorted(wrong, key=lambda pair: -pair.measured)
