"""``autoplan`` as a process of its own: what it prints, and what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measured", "run_autoplan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The JSON document of a command; seconds by the clock and of all cores; bytes at the peak."""

    document: dict[str, Any]
    wall: float
    cpu: float
    peak: int


def run_autoplan(words: Sequence[str]) -> Measured | None:
    """What the command took; None where it failed, which it has said on stderr."""
    command = [sys.executable, "-m", "autoplan.cli", *words, "--json", "-q"]
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "document.json"
        start = time.perf_counter()
        with output.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream)
            _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        if status:
            return None
        return Measured(
            document=json.loads(output.read_text(encoding="utf-8")),
            wall=wall,
            cpu=usage.ru_utime + usage.ru_stime,
            peak=usage.ru_maxrss * 1024,
        )
