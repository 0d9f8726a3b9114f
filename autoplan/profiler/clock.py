"""Seconds of work on a device: the host's clock on a CPU, events on CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds that a function takes, apart from what is told to be no part of it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._excluded = 0.0

    def exclude(self, seconds: float) -> None:
        """Take seconds off the time being measured."""
        self._excluded += seconds

    def __call__(self, run: Callable[[], object]) -> float:
        """Seconds of ``run``."""
        self._excluded = 0.0
        if self._cuda:
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3 - self._excluded
        started = time.perf_counter()
        run()
        return time.perf_counter() - started - self._excluded
