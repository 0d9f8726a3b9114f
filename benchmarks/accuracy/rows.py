"""Rows of the published measurements: read, checked, and left out with a reason."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import InputError

__all__ = ["Row", "Skip", "read_rows"]

_TRAPS = ("TRAP", "OOM", "HETEROGENEOUS", "do not use")
_REQUIRED = ("id", "model", "n_layers", "hidden", "n_heads", "seq_len", "gpu", "n_gpus")
# Days from which the source of bloom_prequel forbids to compare with the days before: nodes were
# repaired (1 to 5 % faster), then bf16 with float32 sums of gradients came in
# (bigscience-workshop/bigscience@053adaf, train/tr11-176B-ml/chronicles-prequel.md).
_CHANGES = ("02-25", "02-28")
_DTYPES = (("fp8", "fp8"), ("bf16", "bfloat16"), ("fp16", "float16"))


class Skip(Exception):
    """A row that is not priced, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published run. Empty fields are 0 or "", which mean *not stated*."""

    id: str
    file: str
    model: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    experts: int
    top_k: int
    expert_ffn: int
    expert_ranks: int
    expert_tp: int
    seq_len: int
    gpu: str
    ranks: int
    ranks_per_node: int
    interconnect: str
    precision: str
    dtype: str
    fp8: bool
    dp: int
    tp: int
    sequence: bool
    pp: int
    chunks: int
    context: int
    zero: str
    replicas: int
    micro_batch: int
    global_batch: int
    recompute: str
    schedule: str
    attention: str
    compiled: bool
    step_time: float
    peak_memory: float
    memory_note: str
    optimizer: str
    source: str
    period: str

    @property
    def sweep(self) -> str:
        """What the rows to rank against each other share."""
        return ", ".join(filter(None, (self.whole_sweep, self.period)))

    @property
    def whole_sweep(self) -> str:
        """The same over all periods of a source, though it forbids to compare them."""
        return f"{self.model}, {self.gpu}"


def read_rows(path: Path) -> Iterator[tuple[str, Row | Skip]]:
    """(id, row or why it is left out) for each row of a file; InputError if it is none."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: no column {', '.join(missing)}")
            for number, fields in enumerate(reader, 2):
                if None in fields or None in fields.values():
                    raise InputError(f"{path}:{number}: not as many fields as columns")
                try:
                    yield fields["id"], _row(fields, path.stem)
                except Skip as skip:
                    yield fields["id"], skip
                except ValueError as error:
                    raise InputError(f"{path}:{number}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from error


def _row(fields: Mapping[str, str], file: str) -> Row:
    notes = " ".join(
        fields.get(name, "") for name in ("notes", "peak_mem_note", "interconnect", "gpu")
    )
    for trap in _TRAPS:
        if trap in notes:
            raise Skip(f"marked {trap}")
    step_time = _number(fields, "step_time_s") or _number(fields, "step_time_derived_s")
    dtype = next((dtype for mark, dtype in _DTYPES if mark in fields["precision"].lower()), "")
    if not dtype:
        raise Skip(f"precision {fields['precision'].split()[0]}")
    for name, what in (("n_layers", "layers"), ("n_heads", "heads"), ("hidden", "hidden size")):
        if not fields[name]:
            raise Skip(f"{what} not stated")
    return Row(
        id=fields["id"],
        file=file,
        model=fields["model"],
        layers=_whole(fields, "n_layers"),
        hidden=_whole(fields, "hidden"),
        heads=_whole(fields, "n_heads"),
        kv_heads=_whole(fields, "n_kv_heads") or _whole(fields, "n_heads"),
        ffn=_whole(fields, "ffn"),
        vocab=_whole(fields, "vocab"),
        experts=_whole(fields, "n_experts"),
        top_k=_whole(fields, "top_k"),
        expert_ffn=_whole(fields, "expert_ffn"),
        expert_ranks=_whole(fields, "ep") or 1,
        expert_tp=_whole(fields, "etp"),
        seq_len=_whole(fields, "seq_len"),
        gpu=fields["gpu"],
        ranks=_whole(fields, "n_gpus"),
        ranks_per_node=_whole(fields, "gpus_per_node"),
        interconnect=fields["interconnect"],
        precision=fields["precision"],
        dtype="bfloat16" if dtype == "fp8" else dtype,
        fp8=dtype == "fp8",
        dp=_whole(fields, "dp") or 1,
        tp=_whole(fields, "tp") or 1,
        sequence=fields["sp"] == "yes",
        pp=_whole(fields, "pp") or 1,
        chunks=_whole(fields, "vpp") or 1,
        context=_whole(fields, "cp") or 1,
        zero=fields["zero_stage_or_fsdp"],
        replicas=_whole(fields, "hsdp_replicas") or 1,
        micro_batch=_whole(fields, "micro_batch"),
        global_batch=_whole(fields, "global_batch"),
        recompute=fields["recompute"],
        schedule=fields["schedule"],
        attention=fields["attention"],
        compiled=fields["compile"] == "yes",
        step_time=step_time,
        peak_memory=_number(fields, "peak_mem_gib") * 2**30,
        memory_note=fields["peak_mem_note"],
        optimizer=fields["optimizer"],
        source=fields["source_url_or_repo_path"],
        period=_period(fields["notes"]) if file == "bloom_prequel" else "",
    )


def _period(notes: str) -> str:
    """Which of the source's periods a dated run is of."""
    day = re.search(r"\b0\d-\d\d\b", notes)
    if day is None:
        return ""
    return f"period {1 + sum(day[0] >= change for change in _CHANGES)}"


def _whole(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not text:
        return 0
    if not re.fullmatch(r"\d+(\.0+)?", text):
        raise ValueError(f"{name} is {text!r}, not a whole number")
    return int(float(text))


def _number(fields: Mapping[str, str], name: str) -> float:
    text = fields.get(name, "")
    return float(text) if text else 0.0
