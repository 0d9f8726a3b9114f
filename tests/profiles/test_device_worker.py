"""A rank that measures an accelerator, with a device of scripted times in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplan.profiler import worker as operators
from autoplan.profiles.doubts import profile_notes
from autoplan.profiles.measure import recompute, worker
from autoplan.profiles.measure.cold import Cold
from autoplan.profiles.measure.device import Cpu, Device
from autoplan.profiles.measure.matmuls import matmul_of
from autoplan.profiles.measure.run import Machine, _profile
from autoplan.profiles.measure.sizes import SIZES
from autoplan.profiles.measured import MeasuredProfile
from tests.profiler.conftest import target_of
from tests.profiler.test_worker import record

MACHINE = Machine(
    name="NVIDIA H100 80GB HBM3", cores=8, ranks=1, threads=8, torch="2.13.0+cu126", kind="cuda",
    device="H100-80GB-SXM", driver="570.86.15, CUDA 12.6",
)  # fmt: skip


class Scripted:
    """Each timing takes ``pace`` ms; the lead in front of it a second, which must not count."""

    kind = "cuda"
    backend = "nccl"
    place = torch.device("cpu")
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    usual = torch.bfloat16

    def __init__(self, pace: Callable[[int], float] = lambda marks: 1.0) -> None:
        self.pace = pace
        self.now, self.marks, self.recovered, self.leads = 0.0, 0, 0, 0

    def mark(self) -> float:
        self.marks += 1
        self.now += 1e-3 * self.pace(self.marks)
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def lead(self, host_seconds: float) -> None:
        self.leads += 1
        self.now += 1.0

    def beside(self, send: Any, kernel: Any, kernels: int) -> float:
        raise AssertionError("one rank has no collectives")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError)

    def recover(self) -> None:
        self.recovered += 1

    def name(self) -> str:
        return MACHINE.name

    def driver(self) -> str:
        return MACHINE.driver

    def memory(self, ranks: int) -> int:
        return 80 * 10**9 * ranks


Measure = Callable[[Scripted], MeasuredProfile]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measure:
    """Profile that one rank makes of a scripted device, at sizes that a CPU can run."""

    def go(device: Scripted) -> MeasuredProfile:
        monkeypatch.setattr(worker, "open_device", lambda kind, rank: device)
        monkeypatch.setattr(worker, "start_rank", lambda *args, **options: None)
        monkeypatch.setitem(SIZES["cuda"], "quick", SIZES["cpu"]["tiny"])
        monkeypatch.setitem(recompute._NUMEL, "cuda", 2**10)
        monkeypatch.setattr("autoplan.profiles.measure.run.open_device", lambda kind: device)
        result = tmp_path / "timings.json"
        worker.main(["0", "1", "1", "quick", "store", str(result), "cuda"])
        return _profile(MACHINE, json.loads(result.read_text()))

    return go


def test_a_profile_of_an_accelerator_has_the_device_s_own_times(measure: Measure) -> None:
    device = Scripted()
    profile = measure(device)
    assert (profile.device, profile.driver) == ("H100-80GB-SXM", "570.86.15, CUDA 12.6")
    assert [t.time for t in profile.matmul] == pytest.approx([1e-3] * 6)
    assert profile.attention.dtype == "bfloat16"
    # 20 operators in 1 ms of the device, however long this host takes to call them.
    assert profile.kernel_latency == pytest.approx(1e-3 / 20)
    assert profile.dispatch_latency is not None
    assert profile.dispatch_latency != pytest.approx(profile.kernel_latency)
    assert device.leads > sum(t.repeats for t in profile.matmul)


def test_out_of_memory_is_noted_and_the_rest_goes_on(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(n: int, dtype: torch.dtype, place: torch.device) -> Cold:
        if n == 128:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return matmul_of(n, dtype, place)

    monkeypatch.setattr(worker, "matmul_of", made)
    device = Scripted()
    profile = measure(device)
    assert profile.out_of_memory == ("matmul float32 128", "matmul bfloat16 128")
    assert device.recovered == 2
    assert {t.shape[0] for t in profile.matmul} == {32, 64}
    assert profile.copies and profile.recompute


def test_other_failures_end_the_rank(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(n: int, dtype: torch.dtype, place: torch.device) -> Cold:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(worker, "matmul_of", made)
    with pytest.raises(RuntimeError, match="no kernel image"):
        measure(Scripted())


def test_a_device_that_gets_slow_halfway_is_told(measure: Measure) -> None:
    quick = Scripted()
    measure(quick)
    half = quick.marks // 2
    profile = measure(Scripted(lambda marks: 1.0 if marks < half else 2.0))
    paces = [t.pace for t in (*profile.matmul, *profile.copies, *profile.updates)]
    assert min(paces) == pytest.approx(1.0)
    slow = [t.pace for t in profile.recompute]
    notes = " ".join(profile_notes(profile, Path("gpus.json")))
    assert max(*paces, *slow) == pytest.approx(2.0) and "slow spell of the machine" in notes


def test_an_operator_without_memory_is_recorded_after_the_cache_is_emptied() -> None:
    class Full(Scripted):
        def flush(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    device = Full()
    timing = operators._timing(record(target_of("relu", (4, 4))), device, 0.01)
    assert timing == {"signature": "relu", "failure": "out of memory"}
    assert device.recovered == 1


def test_an_operator_s_times_are_the_device_s() -> None:
    timing = operators._timing(record(target_of("relu", (4, 4))), Scripted(), 0.01)
    assert timing["forward"] == pytest.approx(1e-3)
    # 1 ms, which is what starting any backward takes
    assert timing["backward"] == pytest.approx(0.0, abs=1e-9)
    assert timing["spread"] == pytest.approx(0.0, abs=1e-9)


def test_a_device_that_a_kernel_broke_ends_the_rank_with_its_reason_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Scripted):
        def flush(self) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        wait = flush

    monkeypatch.setattr(operators, "open_device", lambda kind, rank: Broken())
    monkeypatch.setattr(operators, "start_rank", lambda *args, **options: None)
    task = tmp_path / "task.json"
    targets = [record(target_of(name, (4, 4))) for name in ("first", "second")]
    journal = tmp_path / "journal"
    task.write_text(
        json.dumps(
            {
                "device": "cuda", "ranks": 1, "threads": 1, "budget": 0.01,
                "journal": str(journal), "targets": targets,
            }
        )
    )  # fmt: skip
    with pytest.raises(SystemExit, match="device-side assert"):
        operators.main([str(task), "0", "store"])
    (line,) = journal.read_text().splitlines()
    assert "device-side assert" in json.loads(line)["failure"]


@pytest.mark.parametrize("device", [Cpu(), Scripted()])
def test_what_measures_is_a_device(device: Device) -> None:
    members = [name for name in Device.__dict__ if not name.startswith("_")]
    assert all(hasattr(device, name) for name in (*members, *Device.__annotations__))
