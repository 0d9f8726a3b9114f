"""Files about a node's input path: a measured loader, or the stages of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, model_validator

from autoplan.errors import InputError
from autoplan.profiles.schema import Bandwidth, ByteCount, Record, quantity, read_record
from autoplan.units import parse_sample_rate

__all__ = ["LoaderFile", "StageFigure", "StagesFile", "read_loader"]

SampleRate = Annotated[
    float,
    quantity(parse_sample_rate),
    Field(gt=0),
    PlainSerializer(lambda value: f"{value!r} samples/s"),
]
_HINT = "write one with: autoplan profile --loader file.py:factory -o loader.json"


class LoaderFile(Record):
    """Samples/s that a loader was measured to give on one node, all workers together."""

    schema_version: Literal[1] = 1
    kind: Literal["loader"] = "loader"
    loader: str
    rate: SampleRate
    workers: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=1)]
    torch: str
    date: str


class StageFigure(Record):
    """One stage: samples/s of one core; ``sequential`` stages can't be split over cores."""

    name: str
    rate: SampleRate
    sequential: bool = False


class StagesFile(Record):
    """Stages of the input path of one node, its cores, and what a sample takes from the disk.

    ::

        {
          "schema_version": 1,
          "kind": "input",
          "cores": 8,
          "stages": [
            {"name": "decode", "rate": "2 samples/s"},
            {"name": "augment", "rate": "4 samples/s"}
          ],
          "sample_size": "15 MB",
          "disk_bandwidth": "200 MB/s"
        }
    """

    schema_version: Literal[1]
    kind: Literal["input"]
    cores: Annotated[int, Field(ge=1)]
    stages: Annotated[tuple[StageFigure, ...], Field(min_length=1)]
    sample_size: ByteCount | None = None
    disk_bandwidth: Bandwidth | None = None

    @model_validator(mode="after")
    def _check(self) -> StagesFile:
        if (self.sample_size is None) != (self.disk_bandwidth is None):
            raise ValueError("sample_size and disk_bandwidth are of use together only")
        return self


def read_loader(path: Path) -> LoaderFile | StagesFile:
    """Loader or stages in a file; `InputError` with the field path when it is neither."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return read_record(path, LoaderFile, "loader file", hint=_HINT)
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind == "input":
        return read_record(path, StagesFile, "input file")
    if kind != "loader":
        raise InputError(f"{path}: kind is {kind!r}, neither 'loader' nor 'input'", hint=_HINT)
    return read_record(path, LoaderFile, "loader file", hint=_HINT)
