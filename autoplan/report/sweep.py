"""The report of a sweep for a terminal: the answer, a row for each point, the curve."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import TextIO

from autoplan.ir.sweep import PointRecord, SweepRecord
from autoplan.report.curve import Axis, Dot, curve_lines
from autoplan.report.text import ASCII, UNICODE, Glyphs, joined, print_lines, row
from autoplan.units import format_bytes, format_count, format_time

__all__ = ["print_sweep", "sweep_lines"]

_HOUR = 3600.0
_NAMES = {"ranks": "ranks", "global_batch": "batch", "memory_limit": "limit"}
_STATUS = {
    "refused": "not legal",
    "time_limit": "no plan in its share of the time",
    "not_reached": "not reached",
}
_ENDS = {
    "complete": "",
    "time_limit": "stopped at the time limit",
    "interrupted": "stopped by an interrupt",
}


def print_sweep(
    sweep: SweepRecord, stream: TextIO, *, where: str = "", took: Sequence[tuple[str, float]] = ()
) -> None:
    """Write the report; ``where`` is the folder of the plans, ``took`` names seconds."""

    def lines(width: int, glyphs: Glyphs) -> list[str]:
        return sweep_lines(sweep, width=width, unicode=glyphs is UNICODE, where=where, took=took)

    print_lines(stream, lines)


def sweep_lines(
    sweep: SweepRecord,
    *,
    width: int = 80,
    unicode: bool = True,
    where: str = "",
    took: Sequence[tuple[str, float]] = (),
) -> list[str]:
    """Lines of the report, none wider than ``width``."""
    glyphs = UNICODE if unicode else ASCII
    sections: list[Iterable[str]] = [
        _title(sweep, glyphs),
        _answer(sweep, took),
        _table(sweep, glyphs),
        _curve(sweep, glyphs, width),
        _notes(sweep),
        _next(sweep, where),
    ]
    return joined(sections, width)


def _title(sweep: SweepRecord, glyphs: Glyphs) -> list[str]:
    varied, first = sweep.varied(), sweep.points[0]
    parts = [
        sweep.model,
        sweep.accelerator
        if "ranks" in varied
        else f"{first.ranks} {glyphs.times} {sweep.accelerator}",
        f"seq {sweep.seq_len}" if sweep.seq_len else "",
        "" if "global_batch" in varied else f"global batch {first.global_batch}",
        "" if "memory_limit" in varied else f"{format_bytes(first.memory_limit)} a rank",
    ]
    return [f"sweep       {f' {glyphs.dot} '.join(part for part in parts if part)}"]


def _answer(sweep: SweepRecord, took: Sequence[tuple[str, float]]) -> list[str]:
    solved = sum(point.status == "solved" for point in sweep.points)
    points = f"{solved} of {len(sweep.points)} have a plan"
    lines = [row("points", points, _ENDS[sweep.termination])]
    chosen, knee = sweep.the("chosen"), sweep.the("knee")
    if chosen is not None:
        lines.append(row("best", _named(sweep, chosen), f"(objective: {sweep.objective})"))
        lines.append(row("", _gains(sweep, chosen)))
    elif solved:
        lines.append(row("best", f"none: these points have no {sweep.objective}"))
    if knee is not None:
        lines.append(row("knee", _named(sweep, knee), _beyond(sweep)))
    if took:
        text = " + ".join(f"{what} {format_time(seconds)}" for what, seconds in took)
        lines.append(row("took", text))
    return lines


def _named(sweep: SweepRecord, point: PointRecord) -> str:
    """What tells a point from the others."""
    varied = sweep.varied()
    parts = [
        point.cluster if "ranks" in varied or not varied else "",
        f"global batch {point.global_batch}" if "global_batch" in varied else "",
        f"{format_bytes(point.memory_limit)} a rank" if "memory_limit" in varied else "",
    ]
    return ", ".join(part for part in parts if part)


def _gains(sweep: SweepRecord, point: PointRecord) -> str:
    assert point.step_time is not None
    parts = [f"step {format_time(point.step_time)}", _rate(point), _device_hours(point, words=True)]
    if sweep.price_per_hour is not None:
        parts.append(f"cost {_cost(point)}/{_unit(point)}")
    return ", ".join(parts)


def _beyond(sweep: SweepRecord) -> str:
    if "ranks" in sweep.varied():
        return "beyond it, twice the ranks are less than 1.41 times as fast"
    return "furthest below the line between the ends of the front"


def _unit(point: PointRecord) -> str:
    return "Msample" if point.device_seconds_per_token is None else "Mtoken"


def _rate(point: PointRecord) -> str:
    if point.tokens_per_second is not None:
        return f"{format_count(point.tokens_per_second)} tokens/s"
    return f"{format_count(point.samples_per_second or 0.0)} samples/s"


def _device_hours(point: PointRecord, *, words: bool = False) -> str:
    """Device-hours for a million tokens, or samples."""
    per_token = point.device_seconds_per_token
    seconds = point.device_seconds_per_sample if per_token is None else per_token
    assert seconds is not None
    hours = f"{seconds / _HOUR * 1e6:.3g}"
    return f"{hours} device-hours/{_unit(point)}" if words else hours


def _cost(point: PointRecord) -> str:
    cost = point.cost_per_sample if point.cost_per_token is None else point.cost_per_token
    return "" if cost is None else f"{cost * 1e6:.3g}"


def _table(sweep: SweepRecord, glyphs: Glyphs) -> list[str]:
    varied = sweep.varied() or ("ranks",)
    unit = next((_unit(point) for point in sweep.points if point.status == "solved"), "Mtoken")
    priced = sweep.price_per_hour is not None
    heads = [f"{_NAMES[name]:>{_width(name)}}" for name in varied]
    heads += [f"{'step time':>10}", f"{'dev-h/' + unit:>13}"]
    heads += [f"{'cost/' + unit:>12}"] if priced else []
    lines = [f"      {''.join(heads)}{'memory':>10}  plan"]
    for point in sweep.points:
        marks = (glyphs.chosen if point.chosen else " ") + (glyphs.best if point.pareto else " ")
        if point.status != "solved":
            marks = f"{glyphs.refused} "
        cells = [f"{_text(getattr(point, name), name):>{_width(name)}}" for name in varied]
        start = f"  {marks}  {''.join(cells)}"
        if point.step_time is None or point.peak_memory is None:
            lines.append(f"{start}  {_why_not(point)}")
            continue
        cells = [f"{format_time(point.step_time):>10}", f"{_device_hours(point):>13}"]
        cells += [f"{_cost(point):>12}"] if priced else []
        knee = "  (knee)" if point.knee else ""
        size = format_bytes(point.peak_memory)
        lines.append(f"{start}{''.join(cells)}{size:>10}  {point.label}{knee}")
    legend = f"  {glyphs.chosen} best   {glyphs.best} Pareto-optimal: no faster one with as little"
    return [*lines, legend]


def _width(name: str) -> int:
    return 10 if name == "memory_limit" else 7


def _text(value: int, name: str) -> str:
    return format_bytes(value) if name == "memory_limit" else str(value)


def _why_not(point: PointRecord) -> str:
    if point.status == "infeasible" and point.shortfall is not None and point.needed is not None:
        return (
            f"does not fit: {format_bytes(point.shortfall)} short, the leanest plan needs "
            f"{format_bytes(point.needed)}"
        )
    what = _STATUS.get(point.status, "does not fit")
    return f"{what}: {point.message}" if point.message else what


def _curve(sweep: SweepRecord, glyphs: Glyphs, width: int) -> list[str]:
    """Time over the first thing that varies; a letter for each combination of the others."""
    solved = [point for point in sweep.points if point.step_time is not None]
    varied = [n for n in ("ranks", "memory_limit", "global_batch") if n in sweep.varied()]
    if not varied or len({getattr(point, varied[0]) for point in solved}) < 2:
        return []
    name, others = varied[0], varied[1:]
    shown = [point for point in sweep.points if point in solved or point.status == "infeasible"]
    series = list(dict.fromkeys(tuple(getattr(p, n) for n in others) for p in solved))
    if len(series) > len(string.ascii_lowercase):
        return []
    letters = dict(zip(series, string.ascii_lowercase, strict=False))

    def sign(point: PointRecord) -> str:
        if point.step_time is None:
            return glyphs.refused
        if others:
            return letters[tuple(getattr(point, n) for n in others)]
        return glyphs.best if point.pareto else glyphs.worse

    per_sample = "global_batch" in varied
    dots = [Dot(getattr(p, name), _height(p, per_sample), sign(p)) for p in shown]
    heights = [dot.y for dot in dots if dot.y is not None]
    places: list[int] = [getattr(point, name) for point in shown]
    log = name != "memory_limit"
    lines = curve_lines(
        dots,
        Axis(min(places), max(places), log=log),
        Axis(min(heights), max(heights), log=log),
        width=min(width, 80),
        x_ends=(_text(min(places), name), _text(max(places), name)),
        y_ends=(format_time(min(heights)), format_time(max(heights))),
    )
    what = "time of a sample" if per_sample else "step time"
    title = f"{what} over {_NAMES[name]}" + (", both logarithmic" if log else "")
    legend = []
    for key, letter in letters.items() if others else ():
        values = zip(others, key, strict=True)
        legend.append(f"  {letter}  " + ", ".join(f"{_NAMES[n]} {_text(v, n)}" for n, v in values))
    return [title, *lines, *legend]


def _height(point: PointRecord, per_sample: bool) -> float | None:
    if point.step_time is None:
        return None
    return point.step_time / point.global_batch if per_sample else point.step_time


def _notes(sweep: SweepRecord) -> list[str]:
    numbers = ", ".join(f"{count} {kind}" for kind, count in sweep.provenance.items() if count)
    lines = [row("numbers", f"of the hardware: {numbers}")] if numbers else []
    if sweep.price_per_hour is not None:
        lines.append(row("price", f"{sweep.price_per_hour:g} a device-hour, as given"))
    if "global_batch" in sweep.varied():
        lines.append(row("note", "another global batch trains otherwise: tune the learning rate"))
    pins = ", ".join(f"{name} {value}" for name, value in sweep.pins.items())
    return [*lines, *([row("fixed", f"{pins} (by the user)")] if pins else [])]


def _next(sweep: SweepRecord, where: str) -> list[str]:
    chosen = sweep.the("chosen")
    if not where:
        return [row("next", "add  -o DIR  to write the plan of each point")]
    if chosen is None or not chosen.plan:
        return [row("plans", where)]
    path = f"{where}/{chosen.plan}"
    return [row("plans", where), row("next", f"autoplan emit {path} -o program")]
