"""A sweep of twenty memory limits against one solve, both as whole processes.

The target is less than twice the CPU time. ``search`` compares the seconds after capture.
"""

from __future__ import annotations

from benchmarks.solve.process import run_autoplan

__all__ = ["compare_sweeps"]

CASES = (
    ("gpt2", "8xh100", 64, 1024, "4GB..40GB:20"),
    ("llama3-8b", "8xh100", 64, 4096, "40GB..80GB:20"),
)
TARGET = 2.0


def compare_sweeps() -> int:
    """Print a row a model; 1 when one fails or takes longer than the target."""
    print("job                 points  plans  solve cpu s  sweep cpu s  ratio  search s      ratio")
    slowest = 0.0
    for model, cluster, batch, length, limits in CASES:
        words = [model, "--cluster", cluster, "--global-batch", str(batch)]
        words += ["--seq-len", str(length)]
        one = run_autoplan(["solve", *words])
        many = run_autoplan(["sweep", *words, "--memory-limit", limits])
        if one is None or many is None:
            return 1
        points = many.document["points"]
        plans = sum(point["status"] == "solved" for point in points)
        ratio = many.cpu / one.cpu
        slowest = max(slowest, ratio)
        alone, together = one.document["solve_time"], many.document["solve_time"]
        print(
            f"{model + ' ' + cluster:19} {len(points):6} {plans:6} {one.cpu:12.1f} "
            f"{many.cpu:12.1f} {ratio:6.2f} {alone:5.1f} {together:5.1f} {together / alone:6.2f}",
            flush=True,
        )
    return int(slowest > TARGET)
