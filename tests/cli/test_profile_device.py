"""``autoplan profile --device``: what is measured, and refusals in one line. No GPU is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplan.cli.main import main
from autoplan.profiles.measure import run
from autoplan.profiles.measured import MeasuredProfile
from tests.profiles.test_accelerator_profile import gpu_document
from tests.profiles.test_device_worker import MACHINE, Scripted

Go = Callable[..., tuple[int, str, str]]


@pytest.fixture
def go(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Go:
    def call(*argv: str) -> tuple[int, str, str]:
        code = main(["profile", *argv, "-o", str(tmp_path / "gpus.json"), "--quiet"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two H100 whose curves are made up."""
    monkeypatch.setattr("autoplan.profiles.measure.cuda.count_devices", lambda: 2)
    monkeypatch.setattr(run, "open_device", lambda kind, rank=0: Scripted())

    def measured(machine: run.Machine, *args: Any, **options: Any) -> MeasuredProfile:
        mine = {
            "driver": machine.driver, "torch": machine.torch, "cores": machine.cores,
            "ranks": machine.ranks, "threads_per_rank": machine.threads,
        }  # fmt: skip
        return MeasuredProfile.model_validate(gpu_document(**mine))

    monkeypatch.setattr("autoplan.profiles.measure.measure_machine", measured)


@pytest.mark.parametrize("argv", [["--device", "cuda"], ["--cluster", "8xh100"]])
def test_without_a_gpu_one_line_says_so(
    go: Go, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = go(*argv)
    assert (code, out) == (2, "")
    assert "no GPU here" in err and "--cluster cpu:2" in err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "what to measure is not said"),
        (["--device", "cpu"], "how many ranks share the CPU"),
        (["--device", "cuda", "--cluster", "cpu:2"], "--cluster cpu:2 is of cpu"),
        (["--device", "cpu", "--cluster", "8xh100"], "is of H100-80GB-SXM"),
        (["--cluster", "2x8xh100"], "has 2 nodes, and one machine is measured"),
        (["--device", "cuda", "--loader", "a.py:b"], "--loader runs on the CPU alone"),
        (["--device", "tpu"], "not one of cpu, cuda"),
    ],
)
def test_what_does_not_go_together_is_refused(go: Go, argv: list[str], words: str) -> None:
    code, _, err = go(*argv)
    assert code == 2 and words in err


def test_every_gpu_is_measured_and_the_next_step_told(
    go: Go, two_gpus: None, tmp_path: Path
) -> None:
    code, out, _ = go("--device", "cuda")
    assert code == 0
    assert "2 ranks of NVIDIA H100 80GB HBM3" in out
    assert "--cluster 2xh100-80gb-sxm --profile" in out
    before = (tmp_path / "gpus.json").read_bytes()
    assert go("--cluster", "2xh100")[0] == 0  # nothing is measured again
    assert (tmp_path / "gpus.json").read_bytes() == before


def test_a_machine_of_another_accelerator_is_refused(go: Go, two_gpus: None) -> None:
    code, _, err = go("--cluster", "2xa100")
    assert code == 2
    assert f"this machine has {MACHINE.name} (H100-80GB-SXM)" in err and "2xh100" in err


def test_a_profile_of_another_driver_is_refused(go: Go, two_gpus: None, tmp_path: Path) -> None:
    assert go("--device", "cuda")[0] == 0
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"driver": "535.1, CUDA 12.6"}))
    code, _, err = go("--device", "cuda")
    assert code == 2 and "driver 535.1, CUDA 12.6, here 570.86.15, CUDA 12.6" in err


def test_devices_that_differ_are_refused(
    go: Go, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Scripted):
        def name(self) -> str:
            return "NVIDIA L4"

    monkeypatch.setattr(run, "open_device", lambda kind, rank=0: Other() if rank else Scripted())
    code, _, err = go("--device", "cuda")
    assert code == 2 and "the 2 devices differ: NVIDIA H100 80GB HBM3, NVIDIA L4" in err
