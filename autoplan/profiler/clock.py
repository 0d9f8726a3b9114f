"""Seconds of work on a device, by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from autoplan.profiles.measure.device import Device

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds that a function takes, apart from what is told to be no part of it.

    ``host`` is what the host needed to call the last one.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.host = 0.0
        self._excluded: list[tuple[Any, Any]] = []

    def exclude(self, run: Callable[[], object]) -> None:
        """Do ``run`` off the clock."""
        start = self.device.mark()
        run()
        self._excluded.append((start, self.device.mark()))

    def __call__(self, run: Callable[[], object]) -> float:
        """Seconds of ``run``."""
        self._excluded = []
        called = time.perf_counter()
        start = self.device.mark()
        run()
        end = self.device.mark()
        self.host = time.perf_counter() - called
        seconds = self.device.seconds(start, end)
        return seconds - sum(self.device.seconds(*pair) for pair in self._excluded)
