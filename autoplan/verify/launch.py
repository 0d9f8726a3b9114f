"""Start of the ranks that run programs for verification, and what they found."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import VerificationError
from autoplan.rules.registry import library_folders

__all__ = ["Finding", "run_programs"]

_WORKER = Path(__file__).parent / "worker.py"
# Seconds that torchrun gets to end the ranks; it kills them itself after 30.
_GRACE = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rank found: its loss, and each gradient it holds.

    ``errors`` are the largest differences of an element from the unsharded model's gradient,
    ``sizes`` the largest elements of that. ``held`` are all parameters of the rank's stage.
    ``collectives`` are those of the model axis in the order issued, each with the bytes of its
    whole tensor; the sums of partial and tied gradients at the end of a step are not among them.
    """

    rank: int
    loss: float
    errors: Mapping[str, float]
    sizes: Mapping[str, float]
    held: tuple[str, ...]
    collectives: tuple[tuple[str, int], ...] = ()


def run_programs(
    programs: Sequence[tuple[Path, Path]], *, ranks: int, work: Path, timeout: float
) -> list[tuple[Finding, ...]]:
    """Findings of each (program folder, reference file), one for each rank.

    All programs run one after another in one launch of ``ranks`` gloo ranks. ``timeout`` is
    seconds for the launch. VerificationError when a rank fails: the first rank's error.
    """
    output = work / "findings"
    output.mkdir(parents=True)
    job = work / "job.json"
    job.write_text(
        json.dumps({"programs": [[str(p), str(r)] for p, r in programs], "output": str(output)}),
        encoding="utf-8",
    )
    stderr = _launch(job, ranks=ranks, timeout=timeout)
    return [
        tuple(_finding(output, index, rank, folder, stderr) for rank in range(ranks))
        for index, (folder, _) in enumerate(programs)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _launch(job: Path, *, ranks: int, timeout: float) -> str:
    """Stderr of the ranks."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "AUTOPLAN_DEVICE": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        # Modules that the model's file found beside itself, for the operators they register.
        "PYTHONPATH": os.pathsep.join(
            filter(None, [*library_folders(), os.environ.get("PYTHONPATH", "")])
        ),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
    command += ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1"]
    command += ["--master-port", str(_free_port()), str(_WORKER), str(job)]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        _stop(process)
        raise VerificationError(
            f"the program did not finish a step on {ranks} ranks within {timeout:.0f} s",
            hint="ranks may wait for each other, or the model is large: try --timeout or --reduced",
        ) from error
    except BaseException:
        _stop(process)
        raise
    return stderr


def _stop(process: subprocess.Popen[str]) -> None:
    """End torchrun and its ranks: they have sessions of their own, so it must end them."""
    process.terminate()
    try:
        process.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _finding(output: Path, index: int, rank: int, folder: Path, stderr: str) -> Finding:
    path = output / f"{index}.{rank}.json"
    if not path.is_file():
        raise _failure(output, folder, stderr)
    found = json.loads(path.read_text(encoding="utf-8"))
    if "error" in found:
        raise _failure(output, folder, stderr)
    return Finding(
        rank=rank,
        loss=found["loss"],
        errors=found["errors"],
        sizes=found["sizes"],
        held=tuple(found["held"]),
        collectives=tuple((kind, size) for kind, size in found["collectives"]),
    )


def _failure(output: Path, folder: Path, stderr: str) -> VerificationError:
    """Error of the first rank that failed by itself."""
    failed = []
    for path in sorted(output.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "error" in found:
            failed.append((path.stat().st_mtime_ns, path, found))
    if failed:
        _, path, found = min(failed, key=lambda item: item[0])
        rank = path.name.split(".")[1]
        message = f"rank {rank} of the program in {folder} failed: {_one_line(found['error'])}"
        return VerificationError(message, details={"traceback": found["traceback"]})
    tail = [line for line in stderr.splitlines() if re.search(r"Error|error", line)]
    reason = _one_line(tail[-1]) if tail else "it ended without a word"
    return VerificationError(
        f"the ranks of the program in {folder} failed: {reason}",
        details={"stderr": stderr[-4000:]},
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
