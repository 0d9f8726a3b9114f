"""Profiles of an accelerator in plans: what they replace, and what they are refused for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoplan.errors import InputError
from autoplan.profiles import load_cluster
from autoplan.profiles.catalogue import find_accelerator
from tests.profiles.test_measured import document


def gpu_document(**changes: Any) -> dict[str, Any]:
    """Made-up profile of two H100."""
    return document() | {
        "device": "H100-80GB-SXM",
        "device_name": "NVIDIA H100 80GB HBM3",
        "driver": "570.86.15, CUDA 12.6",
        "memory": "160 GB",
        "kernel_latency": "2 us",
        "dispatch_latency": "7 us",
        "matmul": [
            {"dtype": "float32", "shape": [1024] * 3, "time": "60 us"},
            {"dtype": "float32", "shape": [8192] * 3, "time": "22 ms"},
            {"dtype": "bfloat16", "shape": [1024] * 3, "time": "12 us"},
            {"dtype": "bfloat16", "shape": [8192] * 3, "time": "1.6 ms"},
        ],
        "copies": [{"moved": "1 MiB", "time": "4 us"}, {"moved": "1 GiB", "time": "400 us"}],
        "attention": {"dtype": "bfloat16", "flop": 10**12, "time": "2 ms"},
        "overlap": {
            "compute_alone": "1 ms", "compute_beside": "1.2 ms",
            "network_alone": "1 ms", "network_beside": "1.1 ms",
        },
    } | changes  # fmt: skip


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(gpu_document(**changes)), encoding="utf-8")
    return path


def test_its_numbers_replace_those_of_the_catalogue(tmp_path: Path) -> None:
    cluster = load_cluster("2xh100", profile=written(tmp_path))
    device = cluster.accelerator
    assert not device.synchronous
    assert device.memory == 80 * 10**9
    assert device.kernel_latency == pytest.approx(2e-6)
    assert device.dispatch_latency == pytest.approx(7e-6)
    assert device.peak("bfloat16") == pytest.approx(2 * 8192**3 / 1.6e-3)
    # The curve is that of bf16: float32 at this size reaches its peak's 62 %.
    flop = 2 * 1024**3
    rate = device.peak("bfloat16") * device.matmul_efficiency(flop)
    assert flop / rate == pytest.approx(10e-6)
    assert device.slow_down.compute == pytest.approx(1.2)
    assert device.slow_down.network == pytest.approx(1.1)
    said = {source.field: source for source in device.sources}["dispatch_latency"]
    assert said.provenance == "measured"
    assert "driver 570.86.15, CUDA 12.6" in said.source


@pytest.mark.parametrize("spec", ["2xa100", "2xh200", "cpu:2"])
def test_a_cluster_of_another_device_is_refused(tmp_path: Path, spec: str) -> None:
    with pytest.raises(InputError, match="is of H100-80GB-SXM"):
        load_cluster(spec, profile=written(tmp_path))


def test_a_latency_that_was_not_measured_stays_the_catalogue_s(tmp_path: Path) -> None:
    device = load_cluster("2xh100", profile=written(tmp_path, dispatch_latency=None)).accelerator
    assert device.dispatch_latency == find_accelerator("h100").dispatch_latency


def test_noise_slow_spells_and_missing_memory_are_told(tmp_path: Path) -> None:
    matmul = gpu_document()["matmul"]
    matmul[3] |= {"pace": 1.6}
    matmul[1] |= {"spread": 0.5}
    path = written(tmp_path, matmul=matmul, out_of_memory=["memory 1048576 KiB"])
    notes = " ".join(load_cluster("2xh100", profile=path).notes)
    assert "slow spell of the machine, most matmul bfloat16 8192x8192x8192" in notes
    assert "noisy, most matmul float32 8192x8192x8192: 50%" in notes
    assert "out of memory, not timed: memory 1048576 KiB" in notes
