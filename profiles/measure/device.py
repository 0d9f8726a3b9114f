"""What measuring asks of a device: marks in its time, a busy queue, memory, a name.

An operator on a CPU is done when its call returns; on an accelerator a call only queues it. So
time is told by marks that the device itself passes, and the host is given a lead before what is
timed, lest its own work be measured.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = ["Cpu", "Device", "Passes", "open_device", "timed"]

_NO_MEMORY = "can't allocate memory"  # of the CPU allocator, which has no error of its own
_PASSED = 2**20  # float32 elements, more than a core's own caches hold

Mark = Any  # a moment of one device, read by that device alone


class Device(Protocol):
    """A kind of device, and the one of it that this rank has.

    ``kind`` is torch's word for it; ``dtypes`` those whose matmuls are measured, ``usual`` the one
    that models are trained in there.
    """

    kind: str
    backend: str
    place: torch.device
    dtypes: tuple[torch.dtype, ...]
    usual: torch.dtype

    def mark(self) -> Mark:
        """The moment when the device is done with what was called so far."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks; waits until the device has passed both."""

    def wait(self) -> None:
        """Return when the device has done all it was given."""

    def flush(self) -> None:
        """Fill the caches with other memory, as the other operators of a step do."""

    def lead(self, host_seconds: float) -> None:
        """Keep the device busy while the host issues what is timed next."""

    def beside(
        self, send: Callable[[bool], Any], kernel: Callable[[], object], kernels: int
    ) -> float:
        """Seconds of a collective while kernels never stop: ``kernels`` take longer than it.

        ``send`` starts it and returns its handle; with False it is in order with the stream.
        """

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error says that memory is short."""

    def recover(self) -> None:
        """Give back what a failed measurement left."""

    def name(self) -> str:
        """What the vendor calls the device."""

    def driver(self) -> str:
        """Version of what drives it; empty where there is no such thing."""

    def memory(self, ranks: int) -> int:
        """Bytes that so many ranks have together."""


class Cpu:
    """The cores of this process."""

    kind = "cpu"
    backend = "gloo"
    place = torch.device("cpu")
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    usual = torch.float32

    def __init__(self) -> None:
        self._passed = torch.zeros(_PASSED)

    def mark(self) -> float:
        """The host's clock."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """Their difference."""
        return end - start

    def wait(self) -> None:
        """Nothing is ever left to do."""

    def flush(self) -> None:
        """Pass over memory that a core's own caches don't hold."""
        self._passed.add_(1)

    def lead(self, host_seconds: float) -> None:
        """The host is the device."""

    def beside(
        self, send: Callable[[bool], Any], kernel: Callable[[], object], kernels: int
    ) -> float:
        """Kernels on this thread until the collective, on gloo's, is done."""
        start = time.perf_counter()
        work = send(True)
        while not work.is_completed():
            kernel()
        work.wait()
        return time.perf_counter() - start

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether Python or torch's allocator says so."""
        return isinstance(error, MemoryError) or _NO_MEMORY in str(error)

    def recover(self) -> None:
        """What is freed is free."""

    def name(self) -> str:
        """Model of the processor."""
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        for line in text.splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware") and value.strip():
                return value.strip()
        return platform.processor() or platform.machine() or "unknown CPU"

    def driver(self) -> str:
        """None."""
        return ""

    def memory(self, ranks: int) -> int:
        """Bytes this process may use: the machine's, or its container's when that has less."""
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        except OSError:
            return physical
        return min(physical, int(limit)) if limit.isdigit() else physical


def open_device(kind: str, rank: int = 0) -> Device:
    """Device of a rank; `UsageError` where this machine has none of that kind."""
    if kind == "cpu":
        return Cpu()
    from autoplan.profiles.measure.cuda import Cuda

    return Cuda(rank)


def timed(device: Device, run: Callable[[], object]) -> float:
    """Seconds of ``run`` on the device."""
    start = device.mark()
    run()
    return device.seconds(start, device.mark())


class Passes:
    """Times a forward and its backward, after a lead as long as the host took the last time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = 0.0

    def __call__(
        self, forward: Callable[[], Any], backward: Callable[[Any], object]
    ) -> tuple[float, float]:
        """Seconds of ``forward``, and of ``backward`` with what that gave."""
        device = self._device
        device.lead(self._host)
        called = time.perf_counter()
        started = device.mark()
        y = forward()
        between = device.mark()
        backward(y)
        ended = device.mark()
        self._host = time.perf_counter() - called
        return device.seconds(started, between), device.seconds(between, ended)
