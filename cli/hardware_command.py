"""``autoplan hardware``: the catalogue, each number with its source."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """All accelerators, or one with the origin of every number."""
    return _list() if args.name is None else _show(args.name)


def _list() -> Outcome:
    from autoplan.profiles.catalogue import hardware_files
    from autoplan.profiles.schema import AcceleratorFile
    from autoplan.units import format_bandwidth, format_bytes, format_flop_rate

    files = [file for file in hardware_files() if isinstance(file, AcceleratorFile)]
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
            }
            for file in files
        ]
    }

    def render(stream: TextIO) -> None:
        row = "{:<17} {:>9} {:>10} {:>12}  {}\n"
        stream.write(row.format("name", "memory", "bandwidth", "bf16 peak", "also called"))
        for file in files:
            peak = file.matmul_peak.get("bfloat16")
            stream.write(
                row.format(
                    file.name.lower(),
                    format_bytes(file.memory.value),
                    format_bandwidth(file.memory_bandwidth.value),
                    "none" if peak is None else format_flop_rate(peak.value),
                    ", ".join(file.aliases),
                ).rstrip()
                + "\n"
            )
        stream.write("\nnext: autoplan hardware NAME   (every number with its source)\n")

    return Outcome(document=document, render=render)


def _show(name: str) -> Outcome:
    from autoplan.profiles.catalogue import accelerator_file

    document = accelerator_file(name).model_dump(mode="json")

    def render(stream: TextIO) -> None:
        for field, value in document.items():
            if field == "matmul_peak":
                for dtype, figure in value.items():
                    _write_figure(stream, f"{field}.{dtype}", figure)
            elif isinstance(value, dict):
                _write_figure(stream, field, value)
            else:
                text = ", ".join(value) if isinstance(value, list) else value
                stream.write(f"{field:<24} {text}\n")

    return Outcome(document=document, render=render)


def _write_figure(stream: TextIO, field: str, figure: dict[str, object]) -> None:
    points = figure.get("points")
    value = f"{len(points)} points" if isinstance(points, list) else figure["value"]
    stream.write(f"{field:<24} {value}\n")
    stream.write(f"{'':<24} {figure['provenance']}: {figure['source']}\n")
