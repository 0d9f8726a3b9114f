"""Measure targets with one process a rank, and keep what is measured through a kill."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import ValidationError

from autoplan.errors import InternalError
from autoplan.profiler.targets import Target, targets_to_json
from autoplan.profiles.measure.ranks import RankFailed, run_ranks
from autoplan.profiles.measure.run import Machine
from autoplan.profiles.measured import OperatorTiming
from autoplan.units import format_time

__all__ = ["journal_path", "measure_operators", "read_journal"]

_BUDGET = 0.12  # seconds of repeats an operator, at least three rounds of it
_LONGEST = 3600.0 * 12
_KILLED = "its rank was killed twice, as by a system out of memory"


def journal_path(profile: Path) -> Path:
    """File beside a profile that fills while its operators are measured."""
    return profile.with_name(profile.name + ".journal")


def read_journal(path: Path, machine: Machine) -> tuple[OperatorTiming, ...]:
    """Timings in a journal of this machine; none from one of another, and no half lines."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    if not lines or lines[0] != _heading(machine):
        return ()
    timings: dict[str, OperatorTiming] = {}
    for line in lines[1:]:
        try:
            timing = _timing(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue  # the kill fell into this line: it is measured again
        timings[timing.signature] = timing
    return tuple(timings.values())


def measure_operators(
    targets: Sequence[Target],
    machine: Machine,
    journal: Path,
    progress: Callable[[str], None],
    *,
    budget: float = _BUDGET,
) -> tuple[OperatorTiming, ...]:
    """Timings of the targets; what the journal holds already isn't measured again.

    An operator at which a rank was killed is tried once more, then recorded as failed: a system
    that is out of memory kills, and would at every resumption.
    """
    suspect = ""
    known, left = _split(targets, journal, machine)
    while left:
        _prepare(journal, machine, begin=not known)
        try:
            with tempfile.TemporaryDirectory(prefix="autoplan-operators-") as name:
                _measure(left, machine, journal, Path(name), progress, budget)
        except RankFailed as failed:
            known, left = _split(targets, journal, machine)
            if not failed.killed or not left:
                raise
            if left[0].signature == suspect:
                _prepare(journal, machine, begin=not known)
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"signature": suspect, "failure": _KILLED}) + "\n")
                known, left = _split(targets, journal, machine)
            suspect = left[0].signature if left else ""
            continue
        known, left = _split(targets, journal, machine)
        if left:
            raise InternalError(f"{journal} lacks {left[0].signature}, which was measured")
    return tuple(known[t.signature] for t in targets)


def _split(
    targets: Sequence[Target], journal: Path, machine: Machine
) -> tuple[dict[str, OperatorTiming], list[Target]]:
    """What a journal holds, and the targets that it lacks."""
    known = {timing.signature: timing for timing in read_journal(journal, machine)}
    return known, [target for target in targets if target.signature not in known]


def _prepare(journal: Path, machine: Machine, *, begin: bool) -> None:
    """Begin a journal, or end a line that a kill cut off."""
    if begin:
        journal.write_text(_heading(machine) + "\n", encoding="utf-8")
    elif not journal.read_text(encoding="utf-8", errors="replace").endswith("\n"):
        with journal.open("a", encoding="utf-8") as file:
            file.write("\n")


def _measure(
    targets: Sequence[Target],
    machine: Machine,
    journal: Path,
    folder: Path,
    progress: Callable[[str], None],
    budget: float,
) -> None:
    task = folder / "task.json"
    task.write_text(
        json.dumps(
            {
                "device": machine.kind,
                "ranks": machine.ranks,
                "threads": machine.threads,
                "budget": budget,
                "journal": str(journal.resolve()),
                "targets": json.loads(targets_to_json(targets)),
            }
        ),
        encoding="utf-8",
    )
    started = time.monotonic()

    def say(line: str) -> None:
        if not line.isdecimal():
            return
        done = int(line)
        left = (time.monotonic() - started) / done * (len(targets) - done)
        progress(f"operator {done} of {len(targets)}, {format_time(left)} left")

    run_ranks(
        "autoplan.profiler.worker",
        [(str(task), str(rank), str(folder / "store")) for rank in range(machine.ranks)],
        threads=machine.threads,
        folder=folder,
        timeout=_LONGEST,
        progress=say,
    )


def _heading(machine: Machine) -> str:
    return json.dumps({"journal": 1, **asdict(machine)}, sort_keys=True)


def _timing(line: dict[str, object]) -> OperatorTiming:
    seconds = {key: f"{line[key]!r} s" for key in ("forward", "backward") if "failure" not in line}
    try:
        return OperatorTiming.model_validate({**line, **seconds})
    except ValidationError as error:
        raise ValueError(str(error)) from error
