"""Tables of the local suite: predicted against measured step time and tensor bytes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.accuracy.statistics import errors, spearman

__all__ = ["memory_errors", "spread", "step_time", "text"]

NOISY = 0.10
_MIB = 2**20
Rows = Mapping[str, Mapping[str, Any]]


def step_time(row: Mapping[str, Any]) -> float:
    """Measured seconds: the median of the medians of the rounds."""
    return float(statistics.median(statistics.median(turn) for turn in row["seconds"]))


def spread(row: Mapping[str, Any]) -> float:
    """Distance of the quartiles of all steps over their median."""
    every = [seconds for turn in row["seconds"] for seconds in turn]
    if len(every) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(every, n=4, method="inclusive")
    return float((third - first) / middle)


def memory_errors(row: Mapping[str, Any]) -> list[float]:
    """Predicted over measured bytes of each rank, minus one."""
    return [
        predicted["peak"] / peak - 1
        for predicted, peak in zip(row["predicted_memory"], row["peaks"], strict=True)
    ]


def text(document: Mapping[str, Any]) -> str:
    """All tables of a document of `run_local`."""
    rows: Rows = document["rows"]
    lines = [f"{name}: {row['error']}" for name, row in rows.items() if "error" in row]
    good = {name: row for name, row in rows.items() if "error" not in row}
    timed = {name: row for name, row in good.items() if "seconds" in row}
    metered = {name: row for name, row in good.items() if "peaks" in row}
    lines += [*_times(timed), *_choices(timed), *_memories(metered)]
    return "\n".join(lines) + "\n"


def _times(rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = [f"{'step time':<22} {'predicted':>10} {'measured':>10} {'error':>8} {'spread':>7}"]
    relative = []
    for name, row in rows.items():
        measured, predicted = step_time(row), row["predicted_step_time"]
        relative.append(predicted / measured - 1)
        lines.append(
            f"{name:<22} {predicted:>8.4g} s {measured:>8.4g} s {relative[-1]:>+8.1%} "
            f"{spread(row):>7.1%}"
        )
    found = errors(relative)
    worst = max(relative, key=abs)
    lines.append(f"{found.rows} rows: median error {found.median:.1%}, worst {worst:+.1%}")
    if len(rows) > 2:
        predicted_all = [row["predicted_step_time"] for row in rows.values()]
        rho = spearman(predicted_all, [step_time(row) for row in rows.values()])
        lines[-1] += f", Spearman {rho:.2f}"
    noisy = [name for name, row in rows.items() if spread(row) > NOISY]
    if noisy:
        lines.append(f"steps spread by more than {NOISY:.0%}: {', '.join(noisy)}")
    return [*lines, ""]


def _choices(rows: Rows) -> list[str]:
    lines = []
    for chosen in [row for row in rows.values() if row["layout"] == "chosen"]:
        others = {
            name: step_time(row)
            for name, row in rows.items()
            if row["model"] == chosen["model"] and row is not chosen
        }
        if others:
            best = min(others, key=lambda name: others[name])
            ratio = step_time(chosen) / others[best]
            lines.append(f"{chosen['plan']}: {ratio:.2f} x the best measured, {best}")
    return [*lines, ""] if lines else []


def _memories(rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = [f"{'memory':<22} rank {'predicted':>12} {'measured':>12} {'error':>8}"]
    relative = []
    for name, row in rows.items():
        for rank, error in enumerate(memory_errors(row)):
            relative.append(error)
            predicted = row["predicted_memory"][rank]["peak"] / _MIB
            lines.append(
                f"{name:<22} {rank:>4} {predicted:>8.2f} MiB {row['peaks'][rank] / _MIB:>8.2f} MiB "
                f"{error:>+8.1%}"
            )
    found = errors(relative)
    lines.append(
        f"{len(rows)} rows, {found.rows} ranks: median error {found.median:.1%}, "
        f"worst {max(relative, key=abs):+.1%}, most under {min(0.0, *relative):+.1%}"
    )
    return lines
