"""Every hardware file: schema, sources, and figures that no real device contradicts."""

import json
from pathlib import Path

import pytest

from autoplan.errors import UsageError
from autoplan.profiles import list_hardware
from autoplan.profiles.catalogue import (
    accelerator_file,
    find_accelerator,
    find_link,
    hardware_files,
)
from autoplan.profiles.schema import AcceleratorFile, LinkFile
from autoplan.units import GB, TB, TFLOP, GiB

FOLDER = Path(__file__).parents[2] / "profiles" / "hardware"
ACCELERATORS = [f for f in hardware_files() if isinstance(f, AcceleratorFile)]
LINKS = [f for f in hardware_files() if isinstance(f, LinkFile)]
NAMES = [f.name for f in ACCELERATORS]


def figures(value, path=""):
    """Every object that holds a number of the file, as (path, object)."""
    if isinstance(value, dict):
        if "value" in value or "points" in value:
            yield path, value
            return
        for key, item in value.items():
            yield from figures(item, f"{path}.{key}")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda p: p.stem)
def test_each_number_names_its_source(path: Path):
    found = list(figures(json.loads(path.read_text())))
    assert len(found) >= 2
    for where, figure in found:
        assert figure["provenance"] in ("catalogue", "default"), where
        assert len(figure["source"]) > 10, where


def test_issue_devices_are_present():
    for name in (
        "v100", "a100-40", "a100-80", "h100", "h200", "b200", "gb200", "mi300x", "l40s",
        "rtx4090", "cpu",
    ):  # fmt: skip
        find_accelerator(name)


@pytest.mark.parametrize("name", NAMES)
def test_roofline_is_sane(name: str):
    device = find_accelerator(name)
    half = dict(device.matmul_peak).get("bfloat16") or device.peak("float16")
    ridge = half / device.memory_bandwidth
    # FLOP per byte from which matmul units are the limit: below 1 or above 600 no device lies.
    assert 1 <= ridge <= 600
    assert 0 < device.usable_memory < device.memory
    assert all(0.0 < y <= 1.0 for _, y in device.matmul_efficiency.points)
    ys = [y for _, y in device.matmul_efficiency.points]
    assert ys == sorted(ys)
    assert all(0.5 <= y <= 1.0 for _, y in device.memory_efficiency.points)
    assert 1e-6 <= device.kernel_latency <= 1e-4
    assert device.peak("float32") > 0


@pytest.mark.parametrize("name", NAMES)
def test_sources_cover_every_number(name: str):
    covered = {source.field for source in find_accelerator(name).sources}
    device = find_accelerator(name)
    wanted = {
        "memory", "reserved", "fragmentation", "matmul_efficiency", "attention_efficiency",
        "memory_bandwidth", "memory_efficiency", "kernel_latency",
        "compute_slow_down", "network_slow_down",
    } | {f"matmul_peak.{dtype}" for dtype, _ in device.matmul_peak}  # fmt: skip
    wanted |= {"matmul_tiles"} if device.matmul_tiles else set()
    wanted |= {"unaligned_matmul"} if device.unaligned_matmul < 1 else set()
    wanted |= {"dispatch_latency"} if device.dispatch_latency else set()
    wanted |= {"convolution_lanes"} if device.convolutions else set()
    assert covered == wanted


@pytest.mark.parametrize("file", ACCELERATORS, ids=NAMES)
def test_links_exist(file: AcceleratorFile):
    intra, inter = find_link(file.intra), find_link(file.inter)
    # A PCIe slot feeds its adapter, so the two may be level.
    assert intra.bandwidth >= 0.9 * inter.bandwidth
    for link in (intra, inter):
        flat = link.efficiency.points == ((1.0, 1.0),)
        wanted = {"latency", "bandwidth"} | (set() if flat else {"efficiency"})
        assert {s.field for s in link.sources} == wanted


def test_published_figures():
    """Spot checks against the vendors' and the benchmarks' own printed numbers."""
    h100 = find_accelerator("H100")
    assert h100.peak("bfloat16") == 989 * TFLOP
    assert h100.memory_bandwidth == 3.35 * TB
    assert 79 * GiB < h100.memory < 80 * GiB
    # stream copy of 2.9 TB/s (Azure ND H100 v5)
    copied = h100.memory_bandwidth * h100.memory_efficiency(2**30)
    assert copied == pytest.approx(2.9 * TB, rel=0.01)
    # no matmul is predicted above the best that anyone measured
    assert h100.peak("bfloat16") * h100.matmul_efficiency(1e15) <= 794.6 * TFLOP
    a100 = find_accelerator("a100")
    rate = a100.peak("float16") * a100.matmul_efficiency(2 * 4096**3)
    assert rate == pytest.approx(228.0 * TFLOP)
    assert find_link("nvlink4").bandwidth == 366 * GB


def test_aliases_are_unique_and_case_insensitive():
    aliases = [a for f in ACCELERATORS for a in (f.name.lower(), *f.aliases)]
    assert len(aliases) == len(set(aliases))
    assert accelerator_file("H100-SXM") is accelerator_file("h100")
    assert accelerator_file("RTX 4090").name == "RTX-4090-24GB"
    assert len(list_hardware()) == len(ACCELERATORS)


def test_unknown_names_get_near_matches():
    with pytest.raises(UsageError, match="no accelerator 'h1000'") as caught:
        find_accelerator("h1000")
    assert "h100" in caught.value.hint and "mi300x" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        find_link("nvlink9")
    assert "nvlink" in caught.value.hint


def test_each_link_file_is_used_or_offered():
    assert {f.name for f in LINKS} >= {f.intra for f in ACCELERATORS} | {
        f.inter for f in ACCELERATORS
    }
