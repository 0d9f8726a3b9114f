"""Schema of the catalogue and cluster files: each number with its unit, provenance and source.

Hardware files (`profiles/hardware/*.json`) are either an `AcceleratorFile` or a `LinkFile`,
told apart by ``kind``. A `ClusterFile` is what a user writes to describe an own cluster.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from autoplan.errors import InputError
from autoplan.units import parse_bandwidth, parse_bytes, parse_flop_rate, parse_time

__all__ = [
    "AcceleratorFile",
    "Bandwidth",
    "ByteCount",
    "ClusterFile",
    "EfficiencyCurve",
    "Figure",
    "FlopRate",
    "LevelFile",
    "LinkFile",
    "LinkOverride",
    "MatmulPoint",
    "MatmulSweep",
    "MaybeNoTime",
    "Pace",
    "Record",
    "Repeats",
    "Seconds",
    "Spread",
    "TilesFigure",
    "first_error",
    "quantity",
    "read_record",
    "write_record",
]

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)


def quantity(parse: Callable[[str], float]) -> BeforeValidator:
    """Validator of a number that files hold as text with its unit."""

    def validate(value: object) -> float:
        if not isinstance(value, str):
            raise ValueError("a quantity is text with its unit, e.g. '80 GB' or '12 us'")
        try:
            return parse(value)
        except OverflowError:
            raise ValueError(f"{value!r} is too large") from None

    return BeforeValidator(validate)


ByteCount = Annotated[
    int, quantity(parse_bytes), Field(ge=0), PlainSerializer(lambda value: f"{value} B")
]
Bandwidth = Annotated[
    float, quantity(parse_bandwidth), Field(gt=0), PlainSerializer(lambda value: f"{value!r} B/s")
]
Seconds = Annotated[
    float, quantity(parse_time), Field(gt=0), PlainSerializer(lambda value: f"{value!r} s")
]
MaybeNoTime = Annotated[
    float, quantity(parse_time), Field(ge=0), PlainSerializer(lambda value: f"{value!r} s")
]
# 10th to 90th percentile over the median, of so many repeats.
Spread = Annotated[float, Field(ge=0)]
Repeats = Annotated[int, Field(ge=0)]
# Seconds of the reference kernel around the timing, over its best: 2 on a machine half as fast.
Pace = Annotated[float, Field(ge=1)]
FlopRate = Annotated[
    float,
    quantity(parse_flop_rate),
    Field(gt=0),
    PlainSerializer(lambda value: f"{value / 1e9!r} GFLOP/s"),
]
Fraction = Annotated[float, Field(gt=0, le=1)]
SlowDownFactor = Annotated[float, Field(ge=1)]
Origin = Literal["catalogue", "default"]
SourceText = Annotated[str, Field(min_length=3)]


class Record(BaseModel):
    """Base of the file records: immutable, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Figure(Record, Generic[T]):
    """One number, what kind of number it is, and who says so."""

    value: T
    provenance: Origin
    source: SourceText


class MatmulPoint(Record):
    """Rate of one (m x k) by (k x n) matmul."""

    shape: tuple[int, int, int]
    rate: FlopRate

    @property
    def flop(self) -> int:
        """FLOP of the matmul, one multiply-add = 2."""
        m, n, k = self.shape
        return 2 * m * n * k


class MatmulSweep(Record):
    """Matmul rates by shape; a fraction of the peak of ``dtype`` in the model."""

    dtype: str
    points: Annotated[tuple[MatmulPoint, ...], Field(min_length=1)]
    provenance: Origin
    source: SourceText


class TilesFigure(Record):
    """How the device works off a matrix product; see `costs.matmul`."""

    multiprocessors: Annotated[int, Field(ge=1)]
    overhead: Seconds
    provenance: Origin
    source: SourceText


class EfficiencyPoint(Record):
    """Fraction of the bandwidth an operator or a collective of ``size`` bytes reaches."""

    size: ByteCount
    fraction: Fraction


class EfficiencyCurve(Record):
    """Fractions of a bandwidth by bytes moved."""

    points: Annotated[tuple[EfficiencyPoint, ...], Field(min_length=1)]
    provenance: Origin
    source: SourceText


class AcceleratorFile(Record):
    """One accelerator: figures of one rank, and the node it usually sits in.

    ``device_names`` are what its driver calls it, ``convolution_lanes`` the float32 elements of a
    vector of a CPU.
    """

    schema_version: Literal[1]
    kind: Literal["accelerator"]
    name: str
    aliases: tuple[str, ...]
    device_names: tuple[str, ...] = ()
    memory: Figure[ByteCount]
    reserved: Figure[ByteCount]
    fragmentation: Figure[Annotated[float, Field(ge=0, lt=1)]]
    matmul_peak: Annotated[dict[str, Figure[FlopRate]], Field(min_length=1)]
    matmul_efficiency: MatmulSweep
    matmul_tiles: TilesFigure | None = None
    attention_efficiency: Figure[Fraction]
    memory_bandwidth: Figure[Bandwidth]
    memory_efficiency: EfficiencyCurve
    kernel_latency: Figure[Seconds]
    dispatch_latency: Figure[Seconds] | None = None
    unaligned_matmul: Figure[Fraction] | None = None
    compute_slow_down: Figure[SlowDownFactor] | None = None
    network_slow_down: Figure[SlowDownFactor] | None = None
    synchronous: bool = False
    convolution_lanes: Figure[Annotated[int, Field(ge=1)]] | None = None
    intra: str
    inter: str
    max_ranks_per_node: Figure[Annotated[int, Field(ge=1)]]

    @model_validator(mode="after")
    def _check(self) -> AcceleratorFile:
        if self.matmul_efficiency.dtype not in self.matmul_peak:
            raise ValueError(f"matmul_efficiency.dtype {self.matmul_efficiency.dtype} has no peak")
        return self


class LinkFile(Record):
    """One network level: per rank and direction, as a collective reaches it.

    ``efficiency`` says which part of ``bandwidth`` collectives of smaller payloads reach.
    """

    schema_version: Literal[1]
    kind: Literal["link"]
    name: str
    latency: Figure[Seconds]
    bandwidth: Figure[Bandwidth]
    efficiency: EfficiencyCurve | None = None


class LinkOverride(Record):
    """A network level in a cluster file: a catalogue name, or own figures, or both."""

    name: str = ""
    latency: Seconds | None = None
    bandwidth: Bandwidth | None = None


class LevelFile(LinkOverride):
    """A network level beyond the innermost: units of ``ranks`` ranks, all if not given.

    Figures that are left out are those of ``inter``. ``oversubscription`` divides the
    bandwidth of each rank: 4 where the ranks below could send four times what the level carries.
    """

    ranks: Annotated[int, Field(ge=1)] | None = None
    oversubscription: Annotated[float, Field(ge=1)] = 1.0


class ClusterFile(Record):
    """A cluster a user describes: an accelerator of the catalogue, counts, and overrides.

    ::

        {
          "schema_version": 1,
          "accelerator": "h100",
          "nodes": 2,
          "ranks_per_node": 4,
          "memory": "94 GiB",
          "inter": {"name": "infiniband-hdr", "bandwidth": "23 GB/s", "latency": "6 us"},
          "source": "our lab, all_reduce_perf of March"
        }

    ``memory`` and ``memory_bandwidth`` are those of one rank; ``intra`` and ``inter`` are the
    networks inside and between nodes, per rank and direction. What is left out is the
    catalogue's. ``domain`` is the number of ranks that ``intra`` joins where those are not the
    ranks of a node (72 in an NVL72 rack of nodes of 4). ``levels`` are the levels beyond, from
    inside out; with one only, ``oversubscription`` says the same in short.
    """

    schema_version: Literal[1]
    accelerator: str
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    ranks_per_node: Annotated[int, Field(ge=1, le=1024)]
    memory: ByteCount | None = None
    memory_bandwidth: Bandwidth | None = None
    intra: LinkOverride = LinkOverride()
    inter: LinkOverride = LinkOverride()
    domain: Annotated[int, Field(ge=1)] | None = None
    levels: tuple[LevelFile, ...] = ()
    oversubscription: Annotated[float, Field(ge=1)] | None = None
    source: str = ""

    @model_validator(mode="after")
    def _check(self) -> ClusterFile:
        world = self.nodes * self.ranks_per_node
        if self.oversubscription is not None and self.levels:
            raise ValueError(
                "oversubscription: belongs to each of the levels where these are given"
            )
        inside = self.domain or self.ranks_per_node
        if world % inside:
            raise ValueError(f"domain: {world} ranks are not whole domains of {inside}")
        for index, level in enumerate(self.levels):
            last = index == len(self.levels) - 1
            ranks = level.ranks or (world if last else 0)
            if not ranks:
                raise ValueError(f"levels.{index}.ranks: only the outermost level may leave it out")
            if ranks % inside or world % ranks:
                raise ValueError(
                    f"levels.{index}.ranks: {ranks} ranks are not whole units of {inside}, or "
                    f"the cluster's {world} not whole units of {ranks}"
                )
            if last and ranks != world:
                raise ValueError(
                    f"levels.{index}.ranks: {ranks}, but the outermost level holds all {world}"
                )
            inside = ranks
        return self


def first_error(error: ValidationError) -> str:
    """Field path and reason of the first problem, e.g. ``copy.3.seconds: ...``."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    said = problem["msg"].removeprefix("Value error, ")
    if not path:
        return said if problem["type"] == "value_error" else f"top level: {said}"
    return f"{path}: {said}"


def _require_known_version(
    path: Path, data: object, record: type[BaseModel], what: str, hint: str
) -> None:
    """Raise for a file of a later release, which has its own names for things."""
    field = record.model_fields.get("schema_version")
    version = data.get("schema_version") if isinstance(data, dict) else None
    if field is None or not isinstance(version, int):
        return
    known = max(get_args(field.annotation))
    if version > known:
        raise InputError(
            f"{path}: {what}: schema_version {version} is of a later release, this one reads "
            f"{known}",
            hint=f"update autoplan, or {hint or 'make the file again with this release'}",
        )


def read_record(path: Path, record: type[R], what: str, *, hint: str = "") -> R:
    """Record in a JSON file; `InputError` with the field path when it is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't read the {what}: {error}") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: the {what} is not valid JSON: {error.msg}", hint=hint
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: the {what} is not valid JSON: {error}", hint=hint) from error
    _require_known_version(path, data, record, what, hint)
    try:
        return record.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{path}: {what}: {first_error(error)}", hint=hint) from error


def write_record(record: BaseModel, path: Path) -> None:
    """Write a record as JSON; readers never see half of it. `InputError` where that fails."""
    text = record.model_dump_json(indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise InputError(
            f"{path}: can't be written: {error.strerror or error}",
            hint="name another place, or make room",
        ) from error


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
