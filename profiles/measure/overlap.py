"""What kernels and a collective lose when they run at the same time, on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from autoplan.profiles.measure.device import Device, timed
from autoplan.profiles.measure.steady import Sample, measure_steadily, sample_of

__all__ = ["measure_overlap"]

_REPEATS = 9
_PART = {"cpu": 128, "cuda": 2048}  # rows of one matmul: short against the collective


class _Streams:
    """Matmuls on this thread or stream, and all_reduces on those of the process group."""

    def __init__(self, device: Device, payload: int) -> None:
        self._device = device
        rows = _PART[device.kind]
        self._x = torch.randn(rows, rows, device=device.place).to(device.usual)
        self._sent = torch.zeros(payload // 4, device=device.place)
        self._matmuls = 1

    def compute(self) -> None:
        for _ in range(self._matmuls):
            torch.mm(self._x, self._x)

    def send(self) -> None:
        dist.all_reduce(self._sent)

    def balance(self, seconds: float, together: Callable[..., list[float]]) -> None:
        """Make the matmuls take about that long."""
        self._matmuls = 200
        (taken,) = together(timed(self._device, self.compute))
        self._matmuls = max(1, round(200 * seconds / taken))

    def compute_beside(self) -> float:
        """Seconds of the matmuls while collectives never stop: one more waits all the time."""
        works = [dist.all_reduce(self._sent, async_op=True) for _ in range(4)]
        seconds = timed(self._device, self.compute)
        for work in works:
            work.wait()
        return seconds

    def send_beside(self) -> float:
        """Seconds of an all_reduce while matmuls never stop."""
        return self._device.beside(
            lambda asynchronous: dist.all_reduce(self._sent, async_op=asynchronous),
            lambda: torch.mm(self._x, self._x),
            4 * self._matmuls,
        )


def measure_overlap(
    device: Device,
    together: Callable[..., list[float]],
    reference: Callable[[], float],
    payload: int,
) -> dict[str, object]:
    """Record of an `OverlapTiming` with an all_reduce of ``payload`` bytes on all ranks."""
    streams = _Streams(device, payload)
    for _ in range(3):
        streams.send()
        streams.compute()
    (network,) = together(min(timed(device, streams.send) for _ in range(3)))
    streams.balance(network, together)
    runs: dict[str, Callable[[], float]] = {
        "compute_alone": lambda: timed(device, streams.compute),
        "network_alone": lambda: timed(device, streams.send),
        "compute_beside": streams.compute_beside,
        "network_beside": streams.send_beside,
    }

    def measure(name: str) -> Sample:
        times = []
        for _ in range(_REPEATS):
            dist.barrier()
            times.append(runs[name]())
        sample = sample_of(times)
        seconds, spread = together(sample.seconds, sample.spread)
        return Sample(seconds=seconds, spread=spread, repeats=_REPEATS)

    measured = measure_steadily(tuple(runs), measure, reference)
    return {
        **{one.what: f"{one.sample.seconds:.9g} s" for one in measured},
        "spread": round(max(one.sample.spread for one in measured), 4),
        "repeats": _REPEATS,
        "pace": round(max(1.0, *(one.pace for one in measured)), 4),
    }
