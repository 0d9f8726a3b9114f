"""Start one worker process a rank, collect what they measure, write the profile.

All ranks measure at the same time, since ranks on one machine share its cores and memory:
a rate measured alone would be one that no training job sees.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from autoplan.errors import AutoplanError, UsageError
from autoplan.profiles.applied import fits_of
from autoplan.profiles.measure.ranks import run_ranks
from autoplan.profiles.measured import MeasuredProfile
from autoplan.profiles.schema import first_error, write_record

__all__ = ["Machine", "measure_cpu", "this_machine", "write_profile"]

_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a measurement depends on besides the code: a CPU, its cores and their use, torch."""

    name: str
    cores: int
    ranks: int
    threads: int
    torch: str

    def measured(self, profile: MeasuredProfile) -> str:
        """How a profile differs from this machine; empty when it was measured on one like it."""
        pairs = {
            "device": (profile.device_name, self.name),
            "cores": (profile.cores, self.cores),
            "ranks": (profile.ranks, self.ranks),
            "threads a rank": (profile.threads_per_rank, self.threads),
            "torch": (profile.torch, self.torch),
        }
        return ", ".join(
            f"{what} {theirs}, here {ours}"
            for what, (theirs, ours) in pairs.items()
            if theirs != ours
        )


def this_machine(ranks: int) -> Machine:
    """The machine at hand with ``ranks`` processes that share its cores."""
    if not 1 <= ranks <= 64:
        raise UsageError(f"can't measure with {ranks} ranks", hint="give 1 to 64")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    return Machine(
        name=_cpu_name(),
        cores=cores,
        ranks=ranks,
        threads=max(1, cores // ranks),
        torch=torch.__version__,
    )


def measure_cpu(
    ranks: int,
    progress: Callable[[str], None] | None = None,
    *,
    quick: bool = False,
    tiny: bool = False,
) -> MeasuredProfile:
    """Profile of this machine's CPU with ``ranks`` processes at work at once.

    About a minute for two ranks; ``quick`` takes about half of it, with fewer sizes and
    repeats. ``tiny`` measures only small sizes, to try the machinery, not to plan with.
    """
    machine = this_machine(ranks)
    size = "tiny" if tiny else "quick" if quick else "full"
    with tempfile.TemporaryDirectory(prefix="autoplan-profile-") as folder:
        timings = _run_workers(ranks, machine.threads, size, Path(folder), progress or _silent)
    try:
        profile = _profile(machine, timings)
    except ValidationError as error:
        raise AutoplanError(
            f"measuring gave timings that can't be: {first_error(error)}",
            hint="measure again while nothing else keeps the machine busy",
        ) from error
    return profile.model_copy(update={"fits": fits_of(profile.collectives)})


def _profile(machine: Machine, timings: dict[str, object]) -> MeasuredProfile:
    return MeasuredProfile.model_validate(
        {
            "schema_version": 2,
            "device": "cpu",
            "device_name": machine.name,
            "cores": machine.cores,
            "ranks": machine.ranks,
            "threads_per_rank": machine.threads,
            "torch": machine.torch,
            "date": datetime.date.today().isoformat(),
            "memory": f"{_memory()} B",
            **timings,
        }
    )


def write_profile(profile: MeasuredProfile, path: Path) -> None:
    """Write a profile as JSON; readers never see half of it."""
    write_record(profile, path)


def _silent(text: str) -> None:
    pass


def _run_workers(
    ranks: int, threads: int, size: str, folder: Path, progress: Callable[[str], None]
) -> dict[str, object]:
    result = folder / "timings.json"
    run_ranks(
        "autoplan.profiles.measure.worker",
        [
            (str(rank), str(ranks), str(threads), size, str(folder / "store"), str(result))
            for rank in range(ranks)
        ],
        threads=threads,
        folder=folder,
        timeout=_TIMEOUT,
        progress=progress,
    )
    timings: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return timings


def _memory() -> int:
    """Bytes this process may use: the machine's, or its container's when that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown CPU"
