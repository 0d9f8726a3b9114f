"""Error tables of published runs, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from benchmarks.accuracy.plans import Pair, discordant, noise_of, plans, rankings
from benchmarks.accuracy.published import Compared, FileResult
from benchmarks.accuracy.statistics import NOISE, Errors, errors

__all__ = ["as_json", "as_text"]

_WORST = 5
_FAR = 0.3  # an error that wants a reason
_MANY_RANKS = 512
_SINGLE_RATES = ("GB200",)  # profiles/hardware: no sweep of products, no copy rate, no attention
Json = dict[str, object]


def as_text(results: Sequence[FileResult], *, pairs: bool = False) -> str:
    """Tables of every file, then of all rows together; ``pairs``: those in the wrong order too."""
    lines: list[str] = []
    for result in results:
        lines += [f"{result.file}: {len(result.compared)} rows usable", *_skips(result)]
        lines += _error_lines(result.compared)
        noise = noise_of(result.compared)
        if noise:
            lines.append(f"  repeats   of a plan in one sweep spread by {noise:.2%}")
        for name, found in rankings(result.compared).items():
            lines.append(
                f"  ranking   {name:<42} {found.rows:>4} rows  rho {found.rho:5.2f}  "
                f"tau {found.tau:5.2f}  over {NOISE:.0%}: {found.clear_tau:5.2f} "
                f"of {found.clear} pairs" + (f"  at best {found.attainable:.2f}" if noise else "")
            )
        if pairs:
            lines += _pair_lines(result.compared)
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
                "attainable_kendall": found.attainable,
            }
            for name, found in rankings(result.compared).items()
        },
        "repeats": noise_of(result.compared),
        "discordant": [_pair(pair) for pair in discordant(result.compared)],
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


def _pair(pair: Pair) -> Json:
    return {
        "sweep": pair.fast.sweep,
        "fast": [run.row.id for run in pair.fast.runs],
        "slow": [run.row.id for run in pair.slow.runs],
        "measured": pair.measured,
        "predicted": pair.predicted,
        "differs": pair.differs,
    }


def _pair_lines(rows: Sequence[Compared]) -> Iterator[str]:
    """Discordant pairs under the name of their sweep, the clearest first."""
    sweep = ""
    for pair in discordant(rows):
        if pair.fast.sweep != sweep:
            sweep = pair.fast.sweep
            yield f"  wrong order in {sweep}: faster, slower, measured, predicted, differs in"
        yield (
            f"    {pair.fast.runs[0].row.id:<10} {pair.slow.runs[0].row.id:<10} "
            f"{pair.measured:+7.1%} {pair.predicted:+7.1%}  {pair.differs}"
        )


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


def _far_off(rows: Sequence[Compared]) -> Counter[str]:
    """Rows over the error that wants a reason, by the part of the run that isn't priced."""
    reasons: Counter[str] = Counter()
    for plan in plans(rows, lambda row: row.row.sweep):
        times = [run.row.step_time for run in plan.runs]
        spread = max(times) / min(times) - 1
        for run in plan.runs:
            if abs(run.time_error) > _FAR:
                reasons[_reason(run, spread)] += 1
    return reasons


def _reason(row: Compared, spread: float) -> str:
    plan = row.priced.configuration
    if spread > _FAR / 2:
        return "the same plan's runs differ by over 15 %"
    if row.row.gpu in _SINGLE_RATES:
        return "rates of this device are the best of single products, none of attention"
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
