"""What kernels and a collective lose when they run at the same time, on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from autoplan.profiles.measure.steady import Sample, measure_steadily, sample_of

__all__ = ["measure_overlap"]

_REPEATS = 9
_PART = 128  # rows of one matmul: short against the collective


class _Streams:
    """Matmuls on this thread, and all_reduces on gloo's."""

    def __init__(self, payload: int) -> None:
        self._x = torch.randn(_PART, _PART)
        self._sent = torch.zeros(payload // 4)
        self._matmuls = 1

    def compute(self) -> None:
        for _ in range(self._matmuls):
            torch.mm(self._x, self._x)

    def send(self) -> None:
        dist.all_reduce(self._sent)

    def balance(self, seconds: float, together: Callable[..., list[float]]) -> None:
        """Make the matmuls take about that long."""
        self._matmuls = 200
        (taken,) = together(_time(self.compute))
        self._matmuls = max(1, round(200 * seconds / taken))

    def compute_beside(self) -> float:
        """Seconds of the matmuls while collectives never stop: one more waits all the time."""
        works = [dist.all_reduce(self._sent, async_op=True) for _ in range(4)]
        seconds = _time(self.compute)
        for work in works:
            work.wait()
        return seconds

    def send_beside(self) -> float:
        """Seconds of an all_reduce while matmuls never stop."""
        start = time.perf_counter()
        work = dist.all_reduce(self._sent, async_op=True)
        while not work.is_completed():
            torch.mm(self._x, self._x)
        work.wait()
        return time.perf_counter() - start


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_overlap(
    together: Callable[..., list[float]], reference: Callable[[], float], payload: int
) -> dict[str, object]:
    """Record of an `OverlapTiming` with an all_reduce of ``payload`` bytes on all ranks."""
    streams = _Streams(payload)
    for _ in range(3):
        streams.send()
        streams.compute()
    (network,) = together(min(_time(streams.send) for _ in range(3)))
    streams.balance(network, together)
    runs: dict[str, Callable[[], float]] = {
        "compute_alone": lambda: _time(streams.compute),
        "network_alone": lambda: _time(streams.send),
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
