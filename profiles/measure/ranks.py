"""Worker processes, one a rank, that measure together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import autoplan
from autoplan.errors import AutoplanError

__all__ = ["RankFailed", "run_ranks"]


class RankFailed(AutoplanError):
    """A rank that measures ended with a code other than 0, or was ``killed`` (SIGKILL)."""

    killed = False


def run_ranks(
    module: str,
    arguments: Sequence[Sequence[str]],
    *,
    threads: int,
    folder: Path,
    timeout: float,
    progress: Callable[[str], None],
) -> None:
    """Run ``python -m module`` with the arguments of each rank; ``progress`` gets rank 0's lines.

    All are stopped after ``timeout`` seconds, and when this process is interrupted. A rank that
    fails is a `RankFailed` with the last line of its log in ``folder``.
    """
    environment = dict(os.environ)
    package = str(Path(autoplan.__file__).resolve().parent.parent)
    paths = [package, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(threads)
    workers: list[subprocess.Popen[str]] = []
    logs = [folder / f"rank{rank}.log" for rank in range(len(arguments))]
    try:
        for given, log in zip(arguments, logs, strict=True):
            with log.open("w") as stderr:
                worker = subprocess.Popen(
                    [sys.executable, "-m", module, *given],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
            workers.append(worker)
        watchdog = threading.Timer(timeout, _kill, (workers,))
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
    # A rank that was killed takes the others, which lose the connection, with it.
    for rank, code in sorted(enumerate(codes), key=lambda pair: pair[1] != -signal.SIGKILL):
        if code != 0:
            last = logs[rank].read_text(errors="replace").strip().splitlines()[-1:]
            failed = RankFailed(
                f"measuring failed on rank {rank} with code {code}: {''.join(last) or 'no output'}",
                hint="fewer ranks, or a machine with more free memory, may do",
            )
            failed.killed = code == -signal.SIGKILL
            raise failed


def _kill(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
