"""``python -m benchmarks.solve time`` and ``sweep``: how long solving takes."""

from __future__ import annotations

import argparse
import sys

from benchmarks.solve.jobs import time_jobs
from benchmarks.solve.memory_sweep import compare_sweeps

_COMMANDS = {
    "time": (time_jobs, "capture and solve of some jobs, against targets"),
    "sweep": (compare_sweeps, "twenty memory limits against one solve"),
}


def main() -> int:
    """Exit code of what the first argument names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solve", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=text)
    run, _ = _COMMANDS[parser.parse_args().command]
    return run()


if __name__ == "__main__":
    sys.exit(main())
