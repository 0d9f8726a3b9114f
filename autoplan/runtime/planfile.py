"""The parts of plan.json that a program reads, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .failure import InvalidFile

__all__ = ["BoundaryTensor", "ProgramPlan", "read_plan"]


_V_SHAPED = ("zbvzerobubble", "dualpipev")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryTensor:
    """A tensor handed from one pipeline stage to the next: local shape on a tp rank."""

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """What the program needs of its plan; seconds, bytes and FLOP.

    ``stages`` are (first, last) blocks of the chain; ``graph`` is the plan's graph as JSON.
    """

    name: str
    pp: int
    dp_replicate: int
    dp_shard: int
    tp: int
    zero: int
    recompute: str
    schedule: str
    stages: tuple[tuple[int, int], ...]
    microbatches: int
    micro_batch_size: int
    global_batch: int
    seq_len: int
    dtype: str
    optimizer: str
    cluster: str
    accelerator: str
    ranks_per_node: int
    step_time: float
    mfu: float
    peak_memory: int
    graph: Mapping[str, Any]
    digest: str = ""
    master_weights: str = "float32"
    compile: bool = False

    @property
    def ranks(self) -> int:
        """World size."""
        return self.pp * self.dp * self.tp

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.dp_replicate * self.dp_shard

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """Stages that a rank of the pipeline holds: in loops, or the first with the last."""
        if self.schedule in _V_SHAPED:
            return rank, len(self.stages) - 1 - rank
        return tuple(range(rank, len(self.stages), self.pp))

    def ranks_of(self, fqn: str) -> tuple[int, ...]:
        """Ranks of the pipeline whose blocks use the parameter."""
        instances = self.graph["instances"]
        used = {
            index
            for index, (first, last) in enumerate(self.stages)
            if any(fqn in instance["parameters"] for instance in instances[first:last])
        }
        return tuple(rank for rank in range(self.pp) if used.intersection(self.stages_on(rank)))

    def boundary(self, stage: int) -> tuple[BoundaryTensor, ...]:
        """Tensors that ``stage`` receives from the one before it (none for the first)."""
        if stage == 0:
            return ()
        instance = self.graph["instances"][self.stages[stage][0]]
        block = self.graph["classes"][instance["block_class"]]
        tensors = {tensor["name"]: tensor for tensor in block["tensors"]}
        placements = block["boundary_in"] or ["R"] * len(block["inputs"])
        return tuple(
            BoundaryTensor(
                shape=_local(tensors[name]["shape"], placement, self.tp),
                dtype=tensors[name]["dtype"],
                requires_grad=tensors[name]["requires_grad"],
            )
            for name, placement in zip(block["inputs"], placements, strict=True)
        )

    def loss(self) -> BoundaryTensor:
        """The scalar that the last stage returns."""
        block = self.graph["classes"][self.graph["instances"][-1]["block_class"]]
        tensor = next(t for t in block["tensors"] if t["name"] == block["outputs"][0])
        return BoundaryTensor(
            shape=tuple(tensor["shape"]), dtype=tensor["dtype"], requires_grad=True
        )


def _local(shape: list[int], placement: str, ranks: int) -> tuple[int, ...]:
    local = list(shape)
    if placement.startswith("S("):
        dim = int(placement[2:-1].split(",")[0])
        local[dim] = -(-local[dim] // ranks)  # a padded shard is rounded up
    return tuple(local)


def read_plan(path: Path) -> ProgramPlan:
    """Plan of the file; `InvalidFile` when it is missing, truncated or of another version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidFile(
            f"{path} is not complete JSON: {error}", hint="emit the program again"
        ) from error
    if not isinstance(raw, dict) or raw.get("schema_version") != 2:
        raise InvalidFile(f"{path} is not a plan of version 2", hint="emit the program again")
    try:
        plan = _view(raw)
    except (KeyError, TypeError) as error:
        raise InvalidFile(
            f"{path} is not a plan: {error!r} is missing", hint="emit the program again"
        ) from error
    if plan.global_batch != plan.dp * plan.microbatches * plan.micro_batch_size:
        raise InvalidFile(
            f"{path}: global batch {plan.global_batch} is not {plan.dp} data ranks x "
            f"{plan.microbatches} microbatches x {plan.micro_batch_size}",
            hint="solve again; a plan is not meant to be edited",
        )
    return plan


def _view(raw: Mapping[str, Any]) -> ProgramPlan:
    mesh, pipeline, workload = raw["mesh"], raw["pipeline"], raw["workload"]
    cluster, prediction = raw["cluster"], raw["prediction"]
    shown = raw.get("calibration") or prediction  # what the report says the run takes
    return ProgramPlan(
        name=raw["graph"]["name"],
        pp=mesh["pp"],
        dp_replicate=mesh["dp_replicate"],
        dp_shard=mesh["dp_shard"],
        tp=mesh["tp"],
        zero=raw["zero"],
        recompute=raw["recompute"],
        schedule=pipeline["schedule"],
        stages=tuple((stage["first"], stage["last"]) for stage in pipeline["stages"]),
        microbatches=pipeline["microbatches"],
        micro_batch_size=pipeline["micro_batch_size"],
        global_batch=workload["global_batch"],
        seq_len=workload["seq_len"],
        dtype=workload["dtype"],
        optimizer=workload["optimizer"],
        cluster=cluster["spec"],
        accelerator=cluster["accelerator"],
        ranks_per_node=cluster["ranks_per_node"],
        step_time=shown["step_time"],
        mfu=prediction["mfu"] * prediction["step_time"] / shown["step_time"],
        peak_memory=shown["peak_memory"],
        graph=raw["graph"],
        digest=_digest(raw),
        master_weights=workload.get("master_weights", "float32"),
        compile=workload.get("compile", False),
    )


def _digest(raw: Mapping[str, Any]) -> str:
    """What the log names the plan by; `autoplan.ir.identity` computes the same."""
    mesh, pipeline, workload = raw["mesh"], raw["pipeline"], raw["workload"]
    values = [
        raw["model"]["digest"],
        raw["cluster"]["digest"],
        [mesh["pp"], mesh["dp_replicate"], mesh["dp_shard"], mesh["tp"]],
        [pipeline["schedule"], pipeline["microbatches"], pipeline["micro_batch_size"]],
        [[stage["first"], stage["last"]] for stage in pipeline["stages"]],
        [workload["global_batch"], workload["seq_len"], workload["dtype"], workload["optimizer"]],
        workload.get("master_weights", "float32"),
        [raw["zero"], raw["recompute"]],
        *(["compile"] if workload.get("compile", False) else []),
        *(_levels(raw["graph"]) if raw["recompute"] == "mixed" else []),
    ]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]


def _levels(graph: Mapping[str, Any]) -> list[str]:
    """Recompute level of each block of the chain."""
    by_class = [block["recompute"] for block in graph["classes"]]
    return [by_class[instance["block_class"]] for instance in graph["instances"]]
