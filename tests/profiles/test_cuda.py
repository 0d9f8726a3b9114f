"""The thin layer over torch.cuda, with a torch.cuda that only keeps a journal. No GPU is used."""

from __future__ import annotations

import contextlib
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoplan.errors import UsageError
from autoplan.profiles.catalogue import accelerator_of, hardware_files
from autoplan.profiles.measure import cuda
from autoplan.profiles.measure.cuda import Cuda
from autoplan.profiles.measure.device import timed
from autoplan.profiles.schema import AcceleratorFile


class FakeCuda:
    """A device whose every zero_ of the flush buffer takes 2 ms, and other work none."""

    OutOfMemoryError = torch.cuda.OutOfMemoryError

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.now = 0.0  # milliseconds of the stream
        self.stream_name = "current"
        self.capability = (9, 0)
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None
                self.waited = False

            def record(self) -> None:
                self.at = fake.now
                fake.journal.append(f"record on {fake.stream_name}")

            def synchronize(self) -> None:
                self.waited = True
                fake.journal.append("wait for event")

            def elapsed_time(self, end: Any) -> float:
                assert end.waited, "read before the device passed it"
                return float(end.at - self.at)

        self.Event = Event
        self.Stream = lambda place: "side"

    @contextlib.contextmanager
    def stream(self, name: str) -> Any:
        before, self.stream_name = self.stream_name, name
        yield
        self.stream_name = before

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def set_device(self, rank: int) -> None:
        self.journal.append(f"set device {rank}")

    def get_device_capability(self, rank: int) -> tuple[int, int]:
        return self.capability

    def synchronize(self, place: torch.device) -> None:
        self.journal.append("synchronize")

    def empty_cache(self) -> None:
        self.journal.append("empty cache")

    def get_device_name(self, place: torch.device) -> str:
        return "NVIDIA H100 80GB HBM3"

    def get_device_properties(self, place: torch.device) -> Any:
        return SimpleNamespace(total_memory=80 * 10**9)


class Buffer:
    """Memory that a flush writes."""

    def __init__(self, fake: FakeCuda, size: int) -> None:
        self.fake, self.size = fake, size

    def zero_(self) -> None:
        self.fake.now += 2.0
        self.fake.journal.append(f"write {self.size} B")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch, "empty", lambda size, **options: Buffer(made, size))
    return made


def test_a_call_is_timed_between_two_events_of_its_stream(fake: FakeCuda) -> None:
    device = Cuda(1)

    def work() -> None:
        fake.now += 3.0
        fake.journal.append("work")

    assert timed(device, work) == pytest.approx(3e-3)
    assert fake.journal == [
        "set device 1", "record on current", "work", "record on current", "wait for event"
    ]  # fmt: skip


def test_flush_writes_more_than_the_largest_l2(fake: FakeCuda) -> None:
    device = Cuda(0)
    device.flush()
    (size, *_) = (int(line.split()[1]) for line in fake.journal if line.startswith("write"))
    assert size >= 2 * 126 * 10**6  # B200


@pytest.mark.parametrize(("host", "flushes"), [(0.0, 1), (1e-3, 1), (9e-3, 5)])
def test_the_lead_is_as_long_as_the_host_needs(fake: FakeCuda, host: float, flushes: int) -> None:
    device = Cuda(0)
    device.lead(0.0)  # the time of a flush is found out
    fake.journal.clear()
    device.lead(host)
    assert len(fake.journal) == flushes
    assert all(line.startswith("write") for line in fake.journal)


def test_kernels_beside_a_collective_are_queued_first_and_elsewhere(fake: FakeCuda) -> None:
    device = Cuda(0)
    fake.journal.clear()

    def send(asynchronous: bool) -> None:
        assert not asynchronous
        fake.now += 5.0
        fake.journal.append(f"send on {fake.stream_name}")

    kernel = lambda: fake.journal.append(f"kernel on {fake.stream_name}")  # noqa: E731
    assert device.beside(send, kernel, 2) == pytest.approx(5e-3)
    assert fake.journal == [
        "synchronize", "kernel on side", "kernel on side", "record on current",
        "send on current", "record on current", "wait for event", "synchronize",
    ]  # fmt: skip


def test_out_of_memory_is_told_from_other_failures(fake: FakeCuda) -> None:
    device = Cuda(0)
    assert device.is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not device.is_out_of_memory(RuntimeError("device-side assert triggered"))
    device.recover()
    assert fake.journal[-1] == "empty cache"


def test_types_are_those_that_the_device_multiplies(fake: FakeCuda) -> None:
    assert torch.float8_e4m3fn in Cuda(0).dtypes
    fake.capability = (8, 0)
    assert torch.float8_e4m3fn not in Cuda(0).dtypes and Cuda(0).usual is torch.bfloat16
    fake.capability = (7, 0)
    assert torch.bfloat16 not in Cuda(0).dtypes and Cuda(0).usual is torch.float16


def test_name_driver_and_memory(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    said = SimpleNamespace(stdout="570.86.15\n570.86.15\n")
    monkeypatch.setattr(cuda.subprocess, "run", lambda *args, **options: said)
    device = Cuda(0)
    assert device.name() == "NVIDIA H100 80GB HBM3"
    assert device.driver() == "570.86.15, CUDA 12.6"
    assert device.memory(2) == 160 * 10**9


def test_a_driver_that_nothing_tells_is_said_to_be_unknown(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*args: Any, **options: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", absent)
    assert Cuda(0).driver() == "of unknown version, CUDA 12.6"


def test_more_ranks_than_devices_are_refused(fake: FakeCuda) -> None:
    with pytest.raises(UsageError, match="rank 2 has no GPU: this machine shows 2"):
        Cuda(2)


@pytest.mark.parametrize(
    ("name", "accelerator"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("NVIDIA H100 PCIe", "H100-80GB-PCIe"),
        ("NVIDIA H200", "H200-141GB-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB-SXM"),
        ("nvidia a100-sxm4-80gb", "A100-80GB-SXM"),
    ],
)
def test_the_driver_s_name_finds_the_accelerator(name: str, accelerator: str) -> None:
    assert accelerator_of(name).name == accelerator


def test_a_device_that_only_resembles_one_is_not_taken_for_it() -> None:
    with pytest.raises(UsageError, match="'NVIDIA H100 NVL'"):
        accelerator_of("NVIDIA H100 NVL")


def test_every_accelerator_has_a_name_of_its_own() -> None:
    files = [f for f in hardware_files() if isinstance(f, AcceleratorFile) and f.name != "cpu"]
    names = [name.lower() for file in files for name in file.device_names]
    assert all(file.device_names for file in files)
    assert len(names) == len(set(names))
