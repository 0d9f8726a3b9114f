"""Time of ``autoplan --help`` beside that of a bare interpreter: medians and their ratio."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence


def median_time(command: Sequence[str], repeats: int) -> float:
    """Seconds of ``command``, the median of ``repeats`` runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Print both medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    bare = median_time([sys.executable, "-c", "pass"], repeats)
    shown = median_time([sys.executable, "-m", "autoplan.cli", "--help"], repeats)
    print(f"python -c pass   {bare * 1e3:6.1f} ms")
    print(f"autoplan --help  {shown * 1e3:6.1f} ms   {shown / bare:.2f} x")


if __name__ == "__main__":
    main()
