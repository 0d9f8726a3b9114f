"""Seconds of work on the host, by its clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds that a function takes, apart from what is told to be no part of it."""

    def __init__(self) -> None:
        self._excluded = 0.0

    def exclude(self, seconds: float) -> None:
        """Take seconds off the time being measured."""
        self._excluded += seconds

    def __call__(self, run: Callable[[], object]) -> float:
        """Seconds of ``run``."""
        self._excluded = 0.0
        started = time.perf_counter()
        run()
        return time.perf_counter() - started - self._excluded
