"""Start one worker process a rank, collect what they measure, write the profile.

All ranks measure at the same time, since ranks on one machine share its cores and memory:
a rate measured alone would be one that no training job sees.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from autoplan.errors import AutoplanError, UsageError
from autoplan.profiles.applied import fits_of
from autoplan.profiles.catalogue import accelerator_of
from autoplan.profiles.measure.device import open_device
from autoplan.profiles.measure.ranks import run_ranks
from autoplan.profiles.measured import MeasuredProfile
from autoplan.profiles.schema import first_error, write_record

__all__ = ["Machine", "measure_machine", "this_machine", "write_profile"]

_TIMEOUT = 1200.0
_LANES = {"AVX2": 8, "AVX512": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a measurement depends on besides the code: a device, its driver and use, torch.

    ``kind`` is torch's word for the device, ``device`` its name in the catalogue.
    """

    name: str
    cores: int
    ranks: int
    threads: int
    torch: str
    kind: str = "cpu"
    device: str = "cpu"
    driver: str = ""

    def measured(self, profile: MeasuredProfile) -> str:
        """How a profile differs from this machine; empty when it was measured on one like it."""
        pairs = {
            "device": (profile.device_name, self.name),
            "cores": (profile.cores, self.cores),
            "ranks": (profile.ranks, self.ranks),
            "threads a rank": (profile.threads_per_rank, self.threads),
            "driver": (profile.driver, self.driver),
            "torch": (profile.torch, self.torch),
        }
        return ", ".join(
            f"{what} {theirs}, here {ours}"
            for what, (theirs, ours) in pairs.items()
            if theirs != ours
        )


def this_machine(ranks: int, kind: str = "cpu") -> Machine:
    """The machine at hand with ``ranks`` processes that share its cores.

    `UsageError` where a device is missing, not in the catalogue, or unlike the first.
    """
    if not 1 <= ranks <= 64:
        raise UsageError(f"can't measure with {ranks} ranks", hint="give 1 to 64")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    devices = [open_device(kind, rank) for rank in range(ranks if kind != "cpu" else 1)]
    names = list(dict.fromkeys(device.name() for device in devices))
    if len(names) > 1:
        raise UsageError(
            f"the {ranks} devices differ: {', '.join(names)}",
            hint="let CUDA_VISIBLE_DEVICES show devices of one kind",
        )
    return Machine(
        kind=kind,
        device=kind if kind == "cpu" else accelerator_of(names[0]).name,
        driver=devices[0].driver(),
        name=names[0],
        cores=cores,
        ranks=ranks,
        threads=max(1, cores // ranks),
        torch=torch.__version__,
    )


def measure_machine(
    machine: Machine,
    progress: Callable[[str], None] | None = None,
    *,
    quick: bool = False,
    tiny: bool = False,
) -> MeasuredProfile:
    """Profile of this machine with all its ranks at work at once.

    About a minute for two ranks of a CPU; ``quick`` takes about half of it, with fewer sizes and
    repeats. ``tiny`` measures a CPU's small sizes only, to try the machinery, not to plan with.
    """
    size = "tiny" if tiny else "quick" if quick else "full"
    with tempfile.TemporaryDirectory(prefix="autoplan-profile-") as folder:
        timings = _run_workers(machine, size, Path(folder), progress or _silent)
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
            "device": machine.device,
            "driver": machine.driver,
            "device_name": machine.name,
            "cores": machine.cores,
            "ranks": machine.ranks,
            "threads_per_rank": machine.threads,
            "convolution_lanes": _lanes(machine.kind),
            "torch": machine.torch,
            "date": datetime.date.today().isoformat(),
            "memory": f"{open_device(machine.kind).memory(machine.ranks)} B",
            **timings,
        }
    )


def _lanes(kind: str) -> int | None:
    """Float32 elements of a vector of this CPU; None of others, and where torch has no word."""
    return _LANES.get(torch.backends.cpu.get_cpu_capability()) if kind == "cpu" else None


def write_profile(profile: MeasuredProfile, path: Path) -> None:
    """Write a profile as JSON; readers never see half of it."""
    write_record(profile, path)


def _silent(text: str) -> None:
    pass


def _run_workers(
    machine: Machine, size: str, folder: Path, progress: Callable[[str], None]
) -> dict[str, object]:
    result = folder / "timings.json"
    run_ranks(
        "autoplan.profiles.measure.worker",
        [
            (
                *(str(rank), str(machine.ranks), str(machine.threads), size),
                *(str(folder / "store"), str(result), machine.kind),
            )
            for rank in range(machine.ranks)
        ],
        threads=machine.threads,
        folder=folder,
        timeout=_TIMEOUT,
        progress=progress,
    )
    timings: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return timings
