"""A hand-written program of two blocks, and the same model in plain torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoplan.runtime as rt
from autoplan.runtime.planfile import ProgramPlan

WIDTH, HIDDEN, BATCH = 6, 8, 16
FROZEN = "blocks.1.frozen"


def _specs() -> dict[str, rt.ParameterSpec]:
    normal = rt.Init("normal", 0.0, 0.5)
    specs = {"tied": rt.ParameterSpec(shape=(WIDTH, WIDTH), init=normal, partial_grad=True)}
    for index in range(2):
        specs |= {
            f"blocks.{index}.up": rt.ParameterSpec(
                shape=(2 * HIDDEN, WIDTH), dim=0, blocks=2, init=normal
            ),
            f"blocks.{index}.down": rt.ParameterSpec(shape=(WIDTH, HIDDEN), dim=1, init=normal),
            f"blocks.{index}.bias": rt.ParameterSpec(
                shape=(WIDTH,), init=rt.Init("uniform", -1.0, 1.0), partial_grad=True
            ),
            f"blocks.{index}.scale": rt.ParameterSpec(
                shape=(WIDTH,), init=rt.Init("constant", 1.5), partial_grad=True
            ),
        }
    return specs | {
        FROZEN: rt.ParameterSpec(shape=(WIDTH,), init=rt.Init("constant", 0.5), trainable=False)
    }


class Block(nn.Module):
    """Gated product split by columns, then by rows; then rows sharded for the tied product."""

    def __init__(self, index: int, tp: rt.Axis, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.tp, self.last = tp, index == 1
        for name, parameter in parameters.items():
            setattr(self, name.rsplit(".", 1)[-1], parameter)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        gate, value = F.linear(rt.partial_grad(x, self.tp), self.up).chunk(2, -1)
        part = rt.row_parallel_linear(gate.tanh() * value, self.down, self.bias, axis=self.tp)
        rows = rt.reduce_scatter(part, self.tp, 0)
        rows = F.linear(rows * self.scale, self.tied)
        if not self.last:
            return rt.all_gather(rows, self.tp, 0, backward="slice")
        y = rt.all_gather(rows * self.frozen, self.tp, 0, backward="slice")
        return ((y - target) ** 2).mean()


class Stage(nn.Module):
    """Consecutive blocks; the first one feeds ``x`` in."""

    def __init__(self, indices: range, tp: rt.Axis, dtype: torch.dtype, device: Any) -> None:
        super().__init__()
        made = {
            fqn: rt.empty_parameter(spec, tp, dtype, device)
            for fqn, spec in PARAMETERS.items()
            if fqn == "tied" or int(fqn.split(".")[1]) in indices
        }
        self.owned = [
            [f for f in made if f == "tied" or f.startswith(f"blocks.{index}.")]
            for index in indices
        ]
        self.blocks = nn.ModuleList(
            Block(index, tp, {fqn: made[fqn] for fqn in names})
            for index, names in zip(indices, self.owned, strict=True)
        )

    def fqns(self) -> dict[str, nn.Parameter]:
        return {
            fqn: getattr(block, fqn.rsplit(".", 1)[-1])
            for block, names in zip(self.blocks, self.owned, strict=True)
            for fqn in names
        }

    def forward(self, *boundary: Tensor, x: Tensor, target: Tensor) -> Tensor:
        h = boundary[0] if boundary else x
        for block in self.blocks:
            h = rt.checkpoint(block, h, target)
        return h


PARAMETERS = _specs()


@dataclasses.dataclass
class Program:
    """What a generated module provides."""

    stages: int
    dtype: torch.dtype = torch.float32

    @property
    def PARAMETERS(self) -> dict[str, rt.ParameterSpec]:
        return PARAMETERS

    def build_stage(self, index: int, tp: rt.Axis, device: torch.device) -> nn.Module:
        each = 2 // self.stages
        return Stage(range(index * each, (index + 1) * each), tp, self.dtype, device)


def reference(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
    """Loss in plain torch, on whole tensors."""
    for index in range(2):
        p = {name: parameters[f"blocks.{index}.{name}"] for name in ("up", "down", "bias", "scale")}
        gate, value = F.linear(x, p["up"]).chunk(2, -1)
        x = F.linear(gate.tanh() * value, p["down"], p["bias"])
        x = F.linear(x * p["scale"], parameters["tied"])
    return ((x * parameters[FROZEN] - target) ** 2).mean()


def make_plan(**changes: Any) -> ProgramPlan:
    """Plan of the toy at some degrees."""
    dtype = changes.get("dtype", "float32")
    ranks = changes.get("dp_replicate", 1) * changes.get("dp_shard", 1)
    microbatches = changes.get("microbatches", 2)
    size = BATCH // ranks // microbatches

    def tensor(name: str, shape: list[int], kind: str, grad: bool) -> dict[str, Any]:
        return {"name": name, "shape": shape, "dtype": dtype, "kind": kind, "requires_grad": grad}

    h = [size, WIDTH]
    classes = [
        {
            "tensors": [tensor("h0", h, "activation", True)],
            "inputs": [],
            "outputs": ["h0"],
            "boundary_in": [],
            "ops": [],
        },
        {
            "tensors": [tensor("h", h, "boundary", True), tensor("loss", [], "activation", True)],
            "inputs": ["h"],
            "outputs": ["loss"],
            "boundary_in": ["R"],
            "ops": [],
        },
    ]
    instances = [
        {
            "block_class": index,
            "parameters": [f for f in PARAMETERS if f == "tied" or f".{index}." in f],
        }
        for index in range(2)
    ]
    graph = {
        "inputs": [tensor("x", h, "input", False), tensor("target", h, "input", False)],
        "shared_ops": [],
        "shared_tensors": [],
        "classes": classes,
        "instances": instances,
        "parameters": [{"fqn": fqn, "aliases": []} for fqn in PARAMETERS],
    }
    pp = changes.get("pp", 1)
    settings: dict[str, Any] = {
        "name": "toy",
        "pp": 1,
        "dp_replicate": 1,
        "dp_shard": 1,
        "tp": 1,
        "zero": 0,
        "recompute": "full",
        "schedule": "none" if pp == 1 else "1f1b",
        "stages": ((0, 2),) if pp == 1 else ((0, 1), (1, 2)),
        "microbatches": microbatches,
        "micro_batch_size": size,
        "global_batch": BATCH,
        "seq_len": 0,
        "dtype": dtype,
        "optimizer": "adamw",
        "cluster": "cpu",
        "accelerator": "cpu",
        "ranks_per_node": 8,
        "step_time": 0.01,
        "mfu": 0.1,
        "peak_memory": 1,
        "graph": graph,
    }
    return ProgramPlan(**(settings | changes))
