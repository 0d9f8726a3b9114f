"""CUDA devices, by torch.cuda: NVIDIA's, and AMD's where torch is built for ROCm."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from autoplan.errors import UsageError

__all__ = ["Cuda", "count_devices"]

_FLUSHED = 2**29  # bytes written to flush: several times the largest L2 (B200: 126 MB)
_BF16, _FP8 = (8, 0), (8, 9)  # first compute capabilities with such matmuls (Ampere, Ada)


def count_devices() -> int:
    """Number of devices that this process sees; `UsageError` with what to try if none."""
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = (
            f"torch {torch.__version__} is built without CUDA"
            if not built
            else "torch finds no device (driver not loaded, or CUDA_VISIBLE_DEVICES hides it)"
        )
        raise UsageError(
            f"--device cuda: no GPU here: {why}",
            hint="run this on a machine with the GPU, measure the CPU (--cluster cpu:2), or plan "
            "with the catalogue (autoplan hardware list)",
        )
    return torch.cuda.device_count()


class Cuda:
    """Device ``rank`` of this machine: time by events of the current stream."""

    kind = "cuda"
    backend = "nccl"

    def __init__(self, rank: int) -> None:
        found = count_devices()
        if rank >= found:
            raise UsageError(
                f"rank {rank} has no GPU: this machine shows {found}",
                hint=f"give at most {found} ranks",
            )
        torch.cuda.set_device(rank)
        self.place = torch.device("cuda", rank)
        capability = torch.cuda.get_device_capability(rank)
        self.usual = torch.bfloat16 if capability >= _BF16 else torch.float16
        self.dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16)
        if capability >= _BF16:
            self.dtypes += (torch.bfloat16,)
        if capability >= _FP8 and torch.version.cuda:  # AMD's fp8 of that size is another type
            self.dtypes += (torch.float8_e4m3fn,)
        self._other: torch.Tensor | None = None
        self._flush_seconds = 0.0

    def mark(self) -> Any:
        """Event of the current stream."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two events, which torch tells in milliseconds."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self.place)

    def flush(self) -> None:
        """Write more memory than the L2 holds, so that nothing older is in it."""
        self._buffer().zero_()

    def lead(self, host_seconds: float) -> None:
        """Queue flushes that take as long as the host needs, at least one."""
        other = self._buffer()
        for _ in range(max(1, math.ceil(host_seconds / self._flush_seconds))):
            other.zero_()

    def _buffer(self) -> torch.Tensor:
        """Other memory; the time that writing it takes is measured once."""
        if self._other is None:
            self._other = torch.empty(_FLUSHED, dtype=torch.int8, device=self.place)
            self._other.zero_()
            start = self.mark()
            self._other.zero_()
            self._flush_seconds = max(1e-6, self.seconds(start, self.mark()))
        return self._other

    def beside(
        self, send: Callable[[bool], Any], kernel: Callable[[], object], kernels: int
    ) -> float:
        """Kernels on a stream of their own; the collective in order with the current one."""
        side: Any = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        self.wait()
        with torch.cuda.stream(side):
            for _ in range(kernels):
                kernel()
        start = self.mark()
        send(False)
        end = self.mark()
        seconds = self.seconds(start, end)
        self.wait()
        return seconds

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether it is the allocator's own error."""
        return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)

    def recover(self) -> None:
        """Give cached blocks back to the driver."""
        torch.cuda.empty_cache()

    def name(self) -> str:
        """Name that the driver reports."""
        return str(torch.cuda.get_device_name(self.place))

    def driver(self) -> str:
        """Driver, by nvidia-smi where that is installed, and CUDA or ROCm of torch."""
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        try:
            said = subprocess.run(
                ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                capture_output=True, text=True, timeout=30, check=True,
            ).stdout.split()  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            said = []
        return f"{said[0] if said else 'of unknown version'}, {built}"

    def memory(self, ranks: int) -> int:
        """Bytes of the devices of that many ranks, which are alike."""
        return ranks * int(torch.cuda.get_device_properties(self.place).total_memory)
