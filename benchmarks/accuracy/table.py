"""Error tables of published runs, for people and as JSON."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from benchmarks.accuracy.published import Compared, FileResult
from benchmarks.accuracy.statistics import NOISE, Errors, Ranking, errors, sweeps

__all__ = ["as_json", "as_text"]

_WORST = 5
_FAR = 0.3  # an error that wants a reason
_MANY_RANKS = 512
Json = dict[str, object]


def as_text(results: Sequence[FileResult]) -> str:
    """Tables of every file, then of all rows together."""
    lines: list[str] = []
    for result in results:
        lines += [f"{result.file}: {len(result.compared)} rows usable", *_skips(result)]
        lines += _error_lines(result.compared)
        for name, found in _all_sweeps(result.compared).items():
            lines.append(
                f"  ranking   {name:<42} {found.rows:>4} rows  rho {found.rho:5.2f}  "
                f"tau {found.tau:5.2f}  over {NOISE:.0%}: {found.clear_tau:5.2f} "
                f"of {found.clear} pairs"
            )
        for reason, count in _far_off(result.compared).most_common():
            lines.append(f"  over 30 % {count:>4} rows  {reason}")
        for row in _worst(result.compared):
            lines.append(
                f"  worst     {row.row.id:<10} {row.time_error:+7.1%}  "
                f"{row.priced.step_time:.4g} s for {row.row.step_time:.4g} s: {_describe(row)}"
            )
        lines.append("")
    everything = [row for result in results for row in result.compared]
    lines += [f"all: {len(everything)} rows usable", *_error_lines(everything)]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[FileResult]) -> Json:
    """The same, with every row."""
    return {"schema_version": 1, "files": [_file(result) for result in results]}


def _file(result: FileResult) -> Json:
    return {
        "file": result.file,
        "usable": len(result.compared),
        "skipped": dict(Counter(reason for _, reason in result.skipped)),
        "step_time": {name: asdict(found) for name, found in _time_errors(result.compared)},
        "memory": {name: asdict(found) for name, found in _memory_errors(result.compared)},
        "sweeps": {
            name: {
                "rows": found.rows,
                "spearman": found.rho,
                "kendall": found.tau,
                "clear_pairs": found.clear,
                "clear_kendall": found.clear_tau,
            }
            for name, found in _all_sweeps(result.compared).items()
        },
        "rows": [
            {
                "id": row.row.id,
                "configuration": row.priced.configuration.label(),
                "step_time": row.row.step_time,
                "predicted_step_time": row.priced.step_time,
                "peak_memory": row.row.peak_memory,
                "predicted_peak_memory": row.memory,
            }
            for row in result.compared
        ],
    }


def _skips(result: FileResult) -> list[str]:
    counts = Counter(reason for _, reason in result.skipped)
    return [f"  skipped   {count:>4}  {reason}" for reason, count in counts.most_common()]


def _error_lines(rows: Sequence[Compared]) -> Iterator[str]:
    for what, found in (("step time", _time_errors(rows)), ("memory", _memory_errors(rows))):
        for name, group in found:
            yield (
                f"  {what:<9} {name:<18} {group.rows:>4} rows  median {group.median:6.1%}  "
                f"mean {group.mean:6.1%}  bias {group.bias:+7.1%}"
            )


def _time_errors(rows: Sequence[Compared]) -> list[tuple[str, Errors]]:
    return _by_device([row for row in rows if row.row.step_time], lambda row: row.time_error)


def _memory_errors(rows: Sequence[Compared]) -> list[tuple[str, Errors]]:
    return _by_device([row for row in rows if row.row.peak_memory], lambda row: row.memory_error)


def _by_device(
    rows: Sequence[Compared], error: Callable[[Compared], float]
) -> list[tuple[str, Errors]]:
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.row.gpu, []).append(error(row))
    found = [(name, errors(values)) for name, values in sorted(groups.items())]
    if len(found) > 1:
        found.append(("all", errors([error(row) for row in rows])))
    return found


def _all_sweeps(rows: Sequence[Compared]) -> dict[str, Ranking]:
    """Rankings, and where a source has periods, those over all of them as well."""
    found = _sweeps(rows, lambda row: row.row.sweep)
    if any(row.row.period for row in rows):
        whole = _sweeps(rows, lambda row: row.row.whole_sweep)
        found |= {f"{name}, all periods": ranking for name, ranking in whole.items()}
    return found


def _sweeps(rows: Sequence[Compared], sweep: Callable[[Compared], str]) -> dict[str, Ranking]:
    """Rankings; a plan that ran several times counts once, by its median."""
    measured: dict[str, list[float]] = {}
    predicted: dict[str, list[float]] = {}
    for runs in _by_plan(rows, sweep).values():
        row = runs[0]
        # By sample: a larger batch takes longer, whatever the plan.
        batch = max(1, row.row.global_batch)
        median = statistics.median(run.row.step_time for run in runs)
        measured.setdefault(sweep(row), []).append(median / batch)
        predicted.setdefault(sweep(row), []).append(row.priced.step_time / batch)
    return sweeps(measured, predicted)


def _by_plan(
    rows: Sequence[Compared], sweep: Callable[[Compared], str]
) -> dict[tuple[object, ...], list[Compared]]:
    """Rows of one plan of one model together, those with a step time."""
    plans: dict[tuple[object, ...], list[Compared]] = defaultdict(list)
    for row in rows:
        if row.row.step_time:
            plan = row.priced.configuration
            plans[sweep(row), plan, row.row.ranks, row.priced.step_time].append(row)
    return plans


def _far_off(rows: Sequence[Compared]) -> Counter[str]:
    """Rows over the error that wants a reason, by the part of the run that isn't priced."""
    reasons: Counter[str] = Counter()
    for runs in _by_plan(rows, lambda row: row.row.sweep).values():
        times = [run.row.step_time for run in runs]
        spread = max(times) / min(times) - 1
        for run in runs:
            if abs(run.time_error) > _FAR:
                reasons[_reason(run, spread)] += 1
    return reasons


def _reason(row: Compared, spread: float) -> str:
    plan = row.priced.configuration
    if spread > _FAR / 2:
        return "the same plan's runs differ by over 15 %"
    if row.row.ranks >= _MANY_RANKS:
        return f"{_MANY_RANKS} ranks or more: networks shared by many nodes, stragglers"
    if plan.mesh.tp > 1 and not row.hides_tp:
        return "tensor parallel ranks wait for each other at every collective"
    if plan.zero >= 2:
        return "few tokens a rank: compute slows down beside gathers and reductions"
    return "not explained"


def _worst(rows: Sequence[Compared]) -> list[Compared]:
    timed = [row for row in rows if row.row.step_time]
    return sorted(timed, key=lambda row: -abs(row.time_error))[:_WORST]


def _describe(row: Compared) -> str:
    return f"{row.row.model}, {row.row.gpu}, {row.priced.configuration.label()}"
