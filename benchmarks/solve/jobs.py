"""Capture and solve of some jobs as whole processes: wall time, peak memory, share of a target.

Targets are for two cores. The last two models have about as many block classes as blocks.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.solve.process import run_autoplan

__all__ = ["time_jobs"]

CASES = (
    ("gpt2", "8xh100", 64, 1024, 15.0),
    ("llama3-8b", "8xh100", 64, 4096, 20.0),
    ("llama3-70b", "8x8xh100", 256, 4096, 40.0),
    ("llama3-405b", "64x8xh100", 1024, 8192, 60.0),
    ("examples/models/unet.py:model", "8xh100", 256, 0, 20.0),
    ("examples/models/dlrm.py:model", "8xh100", 8192, 0, 20.0),
)


def time_jobs() -> int:
    """Print a row a job; 1 when one fails."""
    print("job                        wall s  target  ratio  peak GiB  capture s  solve s   gap")
    for model, cluster, batch, length, target in CASES:
        words = ["solve", model, "--cluster", cluster, "--global-batch", str(batch)]
        if length:
            words += ["--seq-len", str(length)]
        measured = run_autoplan(words)
        if measured is None:
            return 1
        found, wall = measured.document, measured.wall
        print(
            f"{_name(model) + ' ' + cluster:25} {wall:7.1f} {target:7.0f} {wall / target:6.2f} "
            f"{measured.peak / 2**30:9.2f} {found['capture_time']:10.1f} "
            f"{found['solve_time']:8.1f} {found['gap']:6.1%}",
            flush=True,
        )
    return 0


def _name(model: str) -> str:
    return Path(model.partition(":")[0]).name
