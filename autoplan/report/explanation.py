"""Explanations of placements and degrees, as lines of text and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from autoplan.ir.explanation import (
    Alternative,
    CollectiveTerm,
    DegreeExplanation,
    OperatorTerm,
    PlacementExplanation,
)
from autoplan.units import format_bytes, format_time

__all__ = [
    "degree_document",
    "degree_lines",
    "placement_lines",
    "placements_document",
]

_LABEL = 12
_NOTHING = 5e-4  # of a step: no difference in the digits shown

_PARTS = {
    "exposed_tp": "tensor-parallel collectives",
    "exposed_dp": "gradient and parameter sync",
    "exposed_pp": "pipeline transfers",
    "bubble": "pipeline bubble",
}


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def placement_lines(found: PlacementExplanation) -> list[str]:
    """Text of one explanation."""
    alike = f" (1 of {found.copies} alike)" if found.copies > 1 else ""
    shape = " x ".join(map(str, found.shape)) or "a number"
    lines = [
        _row(found.kind, f"{found.name}, {shape}, in {found.block}{alike}"),
        _row("chosen", f"{found.chosen} on tp {found.ranks}" + " (by the user)" * found.pinned),
        _row("why", _why(found)),
    ]
    lines += ["operators, seconds of a microbatch", *map(_operator, found.operators)]
    if found.collectives:
        lines += ["collectives on tp", *map(_collective, found.collectives)]
    held = [f"{name} {format_bytes(size)}" for name, size in found.state if size]
    if held:
        lines.append(_row("memory", ", ".join(held) + " on a rank, for one copy"))
    if found.alternatives:
        lines.append("other choices, in all copies of the block")
        lines += [_alternative(found, other) for other in found.alternatives]
    return lines


def _operator(term: OperatorTerm) -> str:
    times = f"forward {format_time(term.forward)}, backward {format_time(term.backward)}"
    return f"  {term.name} ({term.target}): {term.strategy}   {times}"


def _collective(term: CollectiveTerm) -> str:
    when = "once a step" if term.when == "step" else f"in each {term.when}"
    size, seconds = format_bytes(term.payload), format_time(term.seconds)
    return f"  {term.kind} of {size} {when}: {seconds}   {term.what}"


def _why(found: PlacementExplanation) -> str:
    """The choice against the runner-up in one sentence."""
    if not found.alternatives:
        return "nothing else is legal" if found.ranks > 1 else "one rank has all of it"
    fitting = [other for other in found.alternatives if other.fits]
    if not fitting:
        return "nothing else fits in memory"
    runner_up = fitting[0]
    change = runner_up.step_time / found.step_time - 1
    if found.pinned and change < 0:
        saved = format_time(found.step_time - runner_up.step_time)
        return f"fixed by the user; {runner_up.choice} would save {saved} a step ({change:+.1%})"
    if abs(change) <= _NOTHING:
        return f"{runner_up.choice} takes the same time; {_memory(found, runner_up)}"
    if change > 0:
        lost = format_time(runner_up.step_time - found.step_time)
        return f"the runner-up, {runner_up.choice}, costs {lost} a step ({change:+.1%})"
    gained = format_time(found.step_time - runner_up.step_time)
    memory = _memory(found, runner_up)
    return (
        f"{runner_up.choice} would save {gained} a step ({change:+.1%}), {memory}: within the gap "
        "of the search, or worth its memory elsewhere"
    )


def _memory(found: PlacementExplanation, other: Alternative) -> str:
    change = other.peak_memory - found.peak_memory
    if change == 0:
        return "the same memory"
    return f"{format_bytes(abs(change))} {'more' if change > 0 else 'less'} on the fullest rank"


def _alternative(found: PlacementExplanation, other: Alternative) -> str:
    seconds = other.step_time - found.step_time
    sign = "+" if seconds >= 0 else "-"
    change = other.step_time / found.step_time - 1
    fits = "" if other.fits else f"   does not fit: needs {format_bytes(other.peak_memory)}"
    changed = "".join(f"; {name} {text}" for name, text in other.changed[:3])
    return (
        f"  {other.choice:<8} {format_time(other.step_time):>9}   {sign}"
        f"{format_time(abs(seconds))} ({change:+.1%})   {_memory(found, other)}{changed}{fits}"
    )


def placements_document(found: Sequence[PlacementExplanation]) -> dict[str, object]:
    """Document for ``--json``: seconds and bytes."""
    documents = []
    for one in found:
        document = asdict(one)
        document["state"] = dict(one.state)
        fitting = [other for other in one.alternatives if other.fits]
        document["runner_up"] = None
        if fitting:
            document["runner_up"] = {
                "choice": fitting[0].choice,
                "step_time_difference": fitting[0].step_time - one.step_time,
                "peak_memory_difference": fitting[0].peak_memory - one.peak_memory,
            }
        documents.append(document)
    return {"explanations": documents}


def degree_lines(found: DegreeExplanation) -> list[str]:
    """Text of an explanation of a degree."""
    asked = f"{found.name} {found.value}"
    other = f"without {asked}" if found.chosen else f"with {asked}"
    lines = [_row(asked, _verdict(found))]
    if found.other is None:
        return lines
    lines.append(_row("the plan", found.plan.label))
    lines.append(_row("best" if not found.needed else "leanest", f"{found.other.label} ({other})"))
    if found.other.time:
        lines.append(_table_head("seconds of a step", other))
        here = [("step time", found.plan.step_time), *found.plan.time]
        there = dict([("step time", found.other.step_time), *found.other.time])
        for name, seconds in here:
            if seconds > 0 or there[name] > 0:
                cells = (format_time(seconds), format_time(there[name]))
                change = _signed(there[name] - seconds, format_time)
                lines.append(_table_row(_PARTS.get(name, name), *cells, change))
    lines.append(_table_head("bytes of the fullest rank", other))
    here_bytes = [("peak", found.plan.peak_memory), *found.plan.memory]
    there_bytes = dict([("peak", found.other.peak_memory), *found.other.memory])
    for name, size in here_bytes:
        if size or there_bytes[name]:
            change = _signed(there_bytes[name] - size, format_bytes)
            cells = (format_bytes(size), format_bytes(there_bytes[name]))
            lines.append(_table_row(name, *cells, change))
    return lines


def _table_head(title: str, other: str) -> str:
    return f"{title:<30}{'the plan':>12}  {other:>24}  {'change':>12}"


def _table_row(name: str, here: str, there: str, change: str) -> str:
    return f"  {name:<28}{here:>12}  {there:>24}  {change:>12}"


def _signed(value: float, text: object) -> str:
    assert callable(text)
    sign = "-" if value < 0 else "+"
    return f"{sign}{text(abs(value))}" if value else "-"


def _verdict(found: DegreeExplanation) -> str:
    if found.needed:
        short = format_bytes(found.needed - found.memory_limit)
        least = "" if found.other else "at least "
        verdict = (
            f"does not fit: {least}{format_bytes(found.needed)} of "
            f"{format_bytes(found.memory_limit)} a rank, {short} short"
        )
        return f"chosen: nothing else fits ({verdict})" if found.chosen else f"rejected: {verdict}"
    if found.other is None:
        return f"{'chosen' if found.chosen else 'rejected'}: {found.reason}"
    seconds = found.other.step_time - found.plan.step_time
    change = found.other.step_time / found.plan.step_time - 1
    least = "" if found.proved else ", of what was found in time"
    if abs(change) <= _NOTHING:
        return f"{'chosen' if found.chosen else 'rejected'}: the best other plan is as fast{least}"
    word = "slower" if seconds > 0 else "faster"
    what = "the best plan without it is" if found.chosen else "the best plan with it is"
    return (
        f"{'chosen' if found.chosen else 'rejected'}: {what} {format_time(abs(seconds))} "
        f"({change:+.1%}) {word}{least}{_main_term(found)}"
    )


def _main_term(found: DegreeExplanation) -> str:
    """The part of the step that differs most."""
    assert found.other is not None
    there = dict(found.other.time)
    changes = {name: there[name] - seconds for name, seconds in found.plan.time}
    slower = found.other.step_time >= found.plan.step_time
    name = max(changes, key=lambda part: changes[part] if slower else -changes[part])
    return f", most of it {_PARTS.get(name, name)}"


def degree_document(found: DegreeExplanation) -> dict[str, object]:
    """Document for ``--json``: seconds and bytes."""
    document = asdict(found)
    for key, plan in (("plan", found.plan), ("other", found.other)):
        if plan is not None:
            document[key] = {**asdict(plan), "time": dict(plan.time), "memory": dict(plan.memory)}
    document["shortfall"] = max(0, found.needed - found.memory_limit)
    return document
