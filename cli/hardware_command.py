"""``autoplan hardware``: the catalogue and measured profiles, each number with its source."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from autoplan.cli.outcome import Outcome
from autoplan.errors import UsageError

if TYPE_CHECKING:
    from autoplan.profiles.schema import AcceleratorFile, LinkFile

__all__ = ["run"]

_WIDTH = 24


def run(args: argparse.Namespace) -> Outcome:
    """All accelerators, or one (or a network, or a profile's file) with every number."""
    words: list[str] = args.what
    if not words or words == ["list"]:
        return _list()
    if words[0] == "show":
        words = words[1:]
        if not words:
            raise UsageError("hardware show: no name given", hint="autoplan hardware list")
    elif words[0] == "list":
        raise UsageError(
            f"hardware list takes no name, {words[1]!r} given",
            hint=f"autoplan hardware show {words[1]}",
        )
    if len(words) > 1:
        raise UsageError(
            f"unknown {words[0]!r}: the names are one at a time, {len(words)} given",
            hint="autoplan hardware list, or autoplan hardware show NAME",
        )
    return _show(words[0])


def _list() -> Outcome:
    from autoplan.profiles.catalogue import hardware_files
    from autoplan.profiles.schema import AcceleratorFile, LinkFile
    from autoplan.units import format_bandwidth, format_bytes, format_flop_rate, format_time

    files = [file for file in hardware_files() if isinstance(file, AcceleratorFile)]
    links = [file for file in hardware_files() if isinstance(file, LinkFile)]
    document = {
        "accelerators": [
            {
                "name": file.name.lower(),
                "aliases": list(file.aliases),
                "memory": file.memory.value,
                "memory_bandwidth": file.memory_bandwidth.value,
                "matmul_peak": {dtype: rate.value for dtype, rate in file.matmul_peak.items()},
                "intra": file.intra,
                "inter": file.inter,
                "max_ranks_per_node": file.max_ranks_per_node.value,
            }
            for file in files
        ],
        "links": [
            {"name": link.name, "bandwidth": link.bandwidth.value, "latency": link.latency.value}
            for link in links
        ],
    }

    def peak(file: AcceleratorFile, dtype: str) -> str:
        rate = file.matmul_peak.get(dtype)
        return "none" if rate is None else format_flop_rate(rate.value)

    def render(stream: TextIO) -> None:
        row = "{:<17} {:>8} {:>10} {:>12} {:>13}  {}\n"
        stream.write(row.format("name", "memory", "bandwidth", "bf16 peak", "fp32 peak", "links"))
        for file in files:
            stream.write(
                row.format(
                    file.name.lower(),
                    format_bytes(file.memory.value),
                    format_bandwidth(file.memory_bandwidth.value),
                    peak(file, "bfloat16"),
                    peak(file, "float32"),
                    f"{file.intra}, {file.inter}",
                )
            )
            if file.aliases:
                stream.write(f"{'':<17} also called {', '.join(file.aliases)}\n")
        stream.write("\nnetworks, per rank and direction\n")
        for link in links:
            rate, latency = format_bandwidth(link.bandwidth.value), format_time(link.latency.value)
            stream.write(f"{link.name:<26} {rate:>10} {latency:>9} a hop\n")
        stream.write("\nnext: autoplan hardware show NAME   (every number with its source)\n")

    return Outcome(document=document, render=render)


def _show(name: str) -> Outcome:
    if name.lower().endswith(".json"):
        return _show_profile(Path(name))

    from autoplan.profiles.catalogue import accelerator_file, hardware_files
    from autoplan.profiles.schema import LinkFile

    links = {file.name: file for file in hardware_files() if isinstance(file, LinkFile)}
    if name.lower() in links:
        return _outcome(links[name.lower()].model_dump(mode="json"), ())
    file = accelerator_file(name)
    used = [links[link] for link in dict.fromkeys((file.intra, file.inter))]
    return _outcome(file.model_dump(mode="json"), used)


def _outcome(document: Mapping[str, object], links: Sequence[LinkFile]) -> Outcome:
    link_documents = {link.name: link.model_dump(mode="json") for link in links}

    def render(stream: TextIO) -> None:
        stream.writelines(_lines(document))
        for name, link in link_documents.items():
            stream.write(f"\nnetwork {name}, per rank and direction\n")
            shown = {k: v for k, v in link.items() if isinstance(v, dict)}
            stream.writelines(_lines(shown))

    return Outcome(document={**document, "links": link_documents}, render=render)


def _lines(document: Mapping[str, object]) -> Iterator[str]:
    """Each field with its value, unit, provenance and source; curves point by point."""
    for field, value in document.items():
        if value is None or field in ("schema_version", "kind"):
            continue
        if field == "matmul_peak" and isinstance(value, dict):
            for dtype, figure in value.items():
                yield from _figure(f"{field}.{dtype}", figure)
        elif isinstance(value, dict):
            yield from _figure(field, value)
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{field:<{_WIDTH}} {text}\n"


def _figure(field: str, figure: Mapping[str, object]) -> Iterator[str]:
    values = {k: v for k, v in figure.items() if k not in ("provenance", "source")}
    points = values.pop("points", None)
    if "value" in values:
        first = _readable(values.pop("value"))
    elif isinstance(points, list | tuple):
        first = f"{len(points)} points"
    else:
        first = ""
    rest = ", ".join(f"{key} {_readable(value)}" for key, value in values.items())
    yield f"{field:<{_WIDTH}} {', '.join(part for part in (first, rest) if part)}\n"
    if isinstance(points, list | tuple):
        for point in points:
            yield f"{'':<{_WIDTH}}   {_point(point)}\n"
    if "provenance" in figure:
        yield f"{'':<{_WIDTH}} {figure['provenance']}: {figure['source']}\n"


def _point(point: Mapping[str, object]) -> str:
    """``8192 x 8192 x 8192   650 TFLOP/s`` or ``1.00 MiB   45.0%``."""
    cells = []
    for key, value in point.items():
        if isinstance(value, list | tuple):
            cells.append(" x ".join(map(str, value)))
        elif key == "fraction" and isinstance(value, float | int):
            cells.append(f"{value:.1%}")
        else:
            cells.append(_readable(value))
    return "  ".join(f"{cell:>12}" for cell in cells)


def _readable(value: object) -> str:
    """Text of a value; a quantity of the files, which is in base units, with three digits."""
    from autoplan.units import (
        format_bandwidth,
        format_bytes,
        format_flop_rate,
        format_time,
        parse_bandwidth,
        parse_bytes,
        parse_flop_rate,
        parse_time,
    )

    forms: tuple[tuple[Callable[[str], float], Callable[[float], str]], ...] = (
        (parse_bytes, format_bytes),
        (parse_bandwidth, format_bandwidth),
        (parse_flop_rate, format_flop_rate),
        (parse_time, format_time),
    )
    if isinstance(value, str):
        for parse, form in forms:
            try:
                return form(parse(value))
            except ValueError:
                continue
    return str(value)


def _show_profile(path: Path) -> Outcome:
    from autoplan.profiles.calibration import load_residual_file
    from autoplan.profiles.measured import MeasuredProfile

    file = load_residual_file(path)
    document = file.model_dump(mode="json")

    def render(stream: TextIO) -> None:
        said = ""
        if isinstance(file, MeasuredProfile):
            said = f"measured: {file.date}, {file.device_name}, torch {file.torch}"
        for field, value in document.items():
            if field in ("schema_version", "kind", "residuals"):
                continue
            if isinstance(value, list | tuple):
                stream.write(f"{field:<{_WIDTH}} {len(value)} points\n")
                for point in value:
                    stream.write(f"{'':<{_WIDTH}}   {_point(point)}\n")
            elif isinstance(value, dict):
                stream.write(f"{field:<{_WIDTH}} {_point(value).strip()}\n")
            else:
                stream.write(f"{field:<{_WIDTH}} {_readable(value)}\n")
        if said:
            stream.write(f"{'':<{_WIDTH}} {said}\n")
        stream.write(f"{'residuals':<{_WIDTH}} {len(file.residuals)} runs\n")
        for run in file.residuals:
            memory = "" if run.memory_ratio is None else f", memory x{run.memory_ratio:.3g}"
            axes = " x ".join(run.axes) or "1 rank"
            stream.write(
                f"{'':<{_WIDTH}}   plan {run.plan[:8]}, model {run.model[:8]} on {axes}, "
                f"{run.dtype}: step time x{run.step_time_ratio:.3g}{memory} "
                f"({run.steps} steps, spread {run.spread:.1%})\n"
            )

    return Outcome(document=document, render=render)
