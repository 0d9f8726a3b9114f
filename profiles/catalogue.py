"""The hardware catalogue: accelerators and links from `hardware/*.json`, found by name."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from autoplan.errors import InternalError, UsageError
from autoplan.ir.hardware import (
    Accelerator,
    Curve,
    HostConvolutions,
    Link,
    MatmulTiles,
    Provenance,
    Source,
)
from autoplan.ir.overlap import SlowDown
from autoplan.profiles.schema import (
    AcceleratorFile,
    EfficiencyCurve,
    Figure,
    LinkFile,
    MatmulSweep,
    TilesFigure,
    first_error,
)

__all__ = [
    "accelerator_file",
    "accelerator_of",
    "find_accelerator",
    "find_link",
    "hardware_files",
    "larger_accelerators",
    "list_hardware",
    "to_accelerator",
    "to_link",
]

# Kernels and collectives beside each other where nobody has published what they lose.
_ASIDE = Figure[float](
    value=1.0,
    provenance="default",
    source="taken not to disturb each other; published only as a mean over several devices, "
    "kernels 1.19 times as long (arXiv 2507.03114)",
)

_FOLDER = Path(__file__).parent / "hardware"


@cache
def hardware_files() -> tuple[AcceleratorFile | LinkFile, ...]:
    """Every file of the catalogue, by file name."""
    files: list[AcceleratorFile | LinkFile] = []
    for path in sorted(_FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        record = AcceleratorFile if data.get("kind") == "accelerator" else LinkFile
        try:
            files.append(record.model_validate(data))
        except ValidationError as error:
            raise InternalError(f"catalogue file {path.name}: {first_error(error)}") from error
    return tuple(files)


def _accelerators() -> tuple[AcceleratorFile, ...]:
    return tuple(file for file in hardware_files() if isinstance(file, AcceleratorFile))


def list_hardware() -> tuple[str, ...]:
    """Names of the accelerators of the catalogue, each with its aliases in brackets."""
    return tuple(
        f"{file.name.lower()} ({', '.join(file.aliases)})" if file.aliases else file.name.lower()
        for file in _accelerators()
    )


def _canonical(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def accelerator_file(name: str) -> AcceleratorFile:
    """Catalogue file of that name or alias, case-insensitive; `UsageError` with near matches."""
    wanted = _canonical(name)
    known: dict[str, AcceleratorFile] = {}
    for file in _accelerators():
        for alias in (_canonical(file.name), *map(_canonical, file.aliases)):
            known[alias] = file
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(
        f"no accelerator {name!r} in the catalogue",
        hint=f"{guess}known: {', '.join(_canonical(file.name) for file in _accelerators())}; "
        "for another one, write a cluster file with its figures",
        details={"accelerator": name, "near": list(near)},
    )


def larger_accelerators(name: str) -> tuple[str, ...]:
    """First names of the accelerators with a fifth more memory than that one, the least first.

    None for what the catalogue hasn't got, and for a CPU.
    """
    files = {file.name: file for file in _accelerators()}
    if name not in files or name.lower() == "cpu":
        return ()
    least = 1.2 * to_accelerator(files[name]).usable_memory
    memory = {file.name: to_accelerator(file).usable_memory for file in files.values()}
    larger = [file for file in files.values() if memory[file.name] >= least]
    return tuple(
        file.aliases[0] if file.aliases else _canonical(file.name)
        for file in sorted(larger, key=lambda file: (memory[file.name], file.name))
    )


def accelerator_of(device_name: str) -> AcceleratorFile:
    """Catalogue file of what a driver calls a device; `UsageError` where none has that name."""
    wanted = _canonical(device_name)
    for file in _accelerators():
        if wanted in map(_canonical, file.device_names):
            return file
    known = ", ".join(name for file in _accelerators() for name in file.device_names)
    raise UsageError(
        f"no accelerator of the catalogue is called {device_name!r} by its driver",
        hint=f"known: {known}; for another one, give its file in profiles/hardware that name",
        details={"device_name": device_name},
    )


def find_accelerator(name: str) -> Accelerator:
    """Accelerator of that name or alias."""
    return to_accelerator(accelerator_file(name))


def find_link(name: str) -> Link:
    """Network level of that name; `UsageError` with near matches."""
    links = {file.name: file for file in hardware_files() if isinstance(file, LinkFile)}
    wanted = _canonical(name)
    if wanted in links:
        return to_link(links[wanted])
    near = difflib.get_close_matches(wanted, links, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(
        f"no network {name!r} in the catalogue", hint=f"{guess}known: {', '.join(links)}"
    )


def _source(
    field: str,
    figure: Figure[float] | Figure[int] | MatmulSweep | EfficiencyCurve | TilesFigure,
) -> Source:
    return Source(field, Provenance(figure.provenance), figure.source)


def to_link(file: LinkFile) -> Link:
    """Link of a catalogue file."""
    sources = [_source("latency", file.latency), _source("bandwidth", file.bandwidth)]
    if file.efficiency is None:
        curve = Curve(((1.0, 1.0),))
    else:
        curve = _bandwidth_curve(file.efficiency)
        sources.append(_source("efficiency", file.efficiency))
    return Link(
        name=file.name,
        latency=file.latency.value,
        bandwidth=file.bandwidth.value,
        sources=tuple(sources),
        efficiency=curve,
    )


def _bandwidth_curve(curve: EfficiencyCurve) -> Curve:
    return Curve(tuple((float(point.size), point.fraction) for point in curve.points))


def _matmul_curve(file: AcceleratorFile) -> Curve:
    sweep = file.matmul_efficiency
    peak = file.matmul_peak[sweep.dtype].value
    points = sorted((float(point.flop), point.rate / peak) for point in sweep.points)
    return Curve(tuple(points))


def to_accelerator(file: AcceleratorFile) -> Accelerator:
    """Accelerator of a catalogue file."""
    sources = [
        _source("memory", file.memory),
        _source("reserved", file.reserved),
        _source("fragmentation", file.fragmentation),
        *(_source(f"matmul_peak.{dtype}", peak) for dtype, peak in file.matmul_peak.items()),
        _source("matmul_efficiency", file.matmul_efficiency),
        _source("attention_efficiency", file.attention_efficiency),
        _source("memory_bandwidth", file.memory_bandwidth),
        _source("memory_efficiency", file.memory_efficiency),
        _source("kernel_latency", file.kernel_latency),
    ]
    tiles = file.matmul_tiles
    if tiles is not None:
        sources.append(_source("matmul_tiles", tiles))
    dispatch, unaligned = file.dispatch_latency, file.unaligned_matmul
    if dispatch is not None:
        sources.append(_source("dispatch_latency", dispatch))
    if unaligned is not None:
        sources.append(_source("unaligned_matmul", unaligned))
    lanes = file.convolution_lanes
    if lanes is not None:
        sources.append(_source("convolution_lanes", lanes))
    slow_downs = file.compute_slow_down or _ASIDE, file.network_slow_down or _ASIDE
    for field, figure in zip(("compute_slow_down", "network_slow_down"), slow_downs, strict=True):
        sources.append(_source(field, figure))
    return Accelerator(
        name=file.name,
        memory=file.memory.value,
        reserved=file.reserved.value,
        fragmentation=file.fragmentation.value,
        matmul_peak=tuple((dtype, peak.value) for dtype, peak in file.matmul_peak.items()),
        matmul_efficiency=_matmul_curve(file),
        attention_efficiency=file.attention_efficiency.value,
        memory_bandwidth=file.memory_bandwidth.value,
        memory_efficiency=_bandwidth_curve(file.memory_efficiency),
        kernel_latency=file.kernel_latency.value,
        sources=tuple(sources),
        dispatch_latency=0.0 if dispatch is None else dispatch.value,
        matmul_tiles=None
        if tiles is None
        else MatmulTiles(multiprocessors=tiles.multiprocessors, overhead=tiles.overhead),
        unaligned_matmul=1.0 if unaligned is None else unaligned.value,
        slow_down=SlowDown(*(figure.value for figure in slow_downs)),
        synchronous=file.synchronous,
        convolutions=None if lanes is None else HostConvolutions(lanes.value),
    )
