"""Start one worker process a rank, collect what they measure, write the profile.

All ranks measure at the same time, since ranks on one machine share its cores and memory:
a rate measured alone would be one that no training job sees.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch

import autoplan
from autoplan.errors import AutoplanError, UsageError
from autoplan.profiles.measured import MeasuredProfile
from autoplan.profiles.schema import write_record

__all__ = ["measure_cpu", "write_profile"]

_TIMEOUT = 600.0


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
    if not 1 <= ranks <= 64:
        raise UsageError(f"can't measure with {ranks} ranks", hint="give 1 to 64")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    threads = max(1, cores // ranks)
    size = "tiny" if tiny else "quick" if quick else "full"
    with tempfile.TemporaryDirectory(prefix="autoplan-profile-") as folder:
        timings = _run_workers(ranks, threads, size, Path(folder), progress or _silent)
    return MeasuredProfile.model_validate(
        {
            "schema_version": 1,
            "device": "cpu",
            "device_name": _cpu_name(),
            "cores": cores,
            "ranks": ranks,
            "threads_per_rank": threads,
            "torch": torch.__version__,
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
    environment = dict(os.environ)
    package = str(Path(autoplan.__file__).resolve().parent.parent)
    paths = [package, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(threads)
    workers: list[subprocess.Popen[str]] = []
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    try:
        for rank, log in enumerate(logs):
            command = [
                sys.executable, "-m", "autoplan.profiles.measure.worker",
                str(rank), str(ranks), str(threads), size, str(folder / "store"), str(result),
            ]  # fmt: skip
            with log.open("w") as stderr:
                worker = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
            workers.append(worker)
        watchdog = threading.Timer(_TIMEOUT, _kill, (workers,))
        watchdog.start()
        try:
            for line in workers[0].stdout or ():
                progress(line.rstrip())
            codes = [worker.wait() for worker in workers]
        finally:
            watchdog.cancel()
    finally:
        _kill(workers)
        for worker in workers:
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
    for rank, code in enumerate(codes):
        if code != 0:
            last = logs[rank].read_text(errors="replace").strip().splitlines()[-1:]
            raise AutoplanError(
                f"measuring failed on rank {rank} with code {code}: {''.join(last) or 'no output'}",
                hint="fewer ranks, or a machine with more free memory, may do",
            )
    timings: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return timings


def _kill(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.kill()


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
