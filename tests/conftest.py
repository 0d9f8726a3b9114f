"""Fixtures for all tests: a small, sound plan built by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoplan.ir.plan import Plan

ROOT = Path(__file__).resolve().parent.parent

_GIB = 2**30


def _tensor(name: str, kind: str, shape: list[int], dtype: str = "float32") -> dict[str, Any]:
    return {
        "name": name,
        "shape": shape,
        "dtype": dtype,
        "kind": kind,
        "requires_grad": dtype == "float32" and kind != "input",
        "base": name,
    }


def _op(name: str, target: str, inputs: list[str], placements: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "target": target,
        "args": [{"ref": item} for item in inputs],
        "outputs": [name],
        "strategy": {"inputs": placements[:-1], "outputs": placements[-1:]},
    }


def sample_plan_data() -> dict[str, Any]:
    """Two blocks on pp 2 x tp 2: column-split then row-split weight, by hand."""
    first = {
        "name": "stem",
        "ops": [_op("h0", "aten.relu.default", ["x"], ["R", "R"])],
        "tensors": [_tensor("x", "parameter", [4, 8]), _tensor("h0", "activation", [4, 8])],
        "inputs": [],
        "outputs": ["h0"],
        "parameters": ["x"],
        "buffers": [],
        "shared": [],
        "boundary_in": [],
        "boundary_out": ["R"],
    }
    second = {
        "name": "mlp",
        "ops": [
            _op("up", "aten.linear.default", ["h", "w1"], ["R", "S(0)", "S(1)"]),
            _op("act", "aten.gelu.default", ["up"], ["S(1)", "S(1)"]),
            _op("down", "aten.linear.default", ["act", "w2"], ["S(1)", "S(1)", "P"]),
            _op("loss", "aten.sum.default", ["down"], ["R", "R"]),
        ],
        "tensors": [
            _tensor("h", "boundary", [4, 8]),
            _tensor("w1", "parameter", [16, 8]),
            _tensor("w2", "parameter", [8, 16]),
            _tensor("up", "activation", [4, 16]),
            _tensor("act", "activation", [4, 16]),
            _tensor("down", "activation", [4, 8]),
            _tensor("loss", "activation", []),
        ],
        "inputs": ["h"],
        "outputs": ["loss"],
        "parameters": ["w1", "w2"],
        "buffers": [],
        "shared": [],
        "boundary_in": ["R"],
        "boundary_out": ["R"],
    }
    parameters = [
        {"fqn": fqn, "shape": shape, "dtype": "float32", "trainable": True, "placement": placed}
        | {"init": {"kind": "normal", "a": 0.0, "b": 0.02}}
        for fqn, shape, placed in (
            ("stem.x", [4, 8], "R"),
            ("mlp.up.weight", [16, 8], "S(0)"),
            ("mlp.down.weight", [8, 16], "S(1)"),
        )
    ]
    memory = {
        "parameters": 4 * _GIB,
        "gradients": 4 * _GIB,
        "optimizer": 16 * _GIB,
        "activations": 30 * _GIB,
        "transient": 2 * _GIB,
        "buffers": 0,
        "peak": 56 * _GIB,
    }
    return {
        "schema_version": 2,
        "autoplan_version": "0.1.0",
        "model": {
            "spec": "toy",
            "form": "builtin",
            "digest": "0" * 16,
            "num_parameters": 288,
        },
        "workload": {
            "global_batch": 16,
            "seq_len": 128,
            "dtype": "float32",
            "optimizer": "adamw",
        },
        "cluster": {
            "spec": "4xh100",
            "accelerator": "H100-80GB-SXM",
            "nodes": 1,
            "ranks_per_node": 4,
            "memory": 80 * _GIB,
            "usable_memory": 74 * _GIB,
            "digest": "1" * 16,
            "profile_digest": "2" * 16,
            "sources": [
                {"field": "accelerator.memory", "provenance": "catalogue", "source": "data sheet"},
                {"field": "intra.latency", "provenance": "default", "source": "assumed"},
            ],
        },
        "mesh": {"pp": 2, "dp_replicate": 1, "dp_shard": 1, "tp": 2},
        "pipeline": {
            "schedule": "1f1b",
            "microbatches": 4,
            "micro_batch_size": 4,
            "stages": [{"first": 0, "last": 1}, {"first": 1, "last": 2}],
        },
        "zero": 0,
        "recompute": "none",
        "graph": {
            "name": "toy",
            "dtype": "float32",
            "micro_batch_size": 4,
            "inputs": [_tensor("ids", "input", [4, 8], "int64")],
            "shared_ops": [],
            "shared_tensors": [],
            "classes": [first, second],
            "instances": [
                {"name": "stem", "block_class": 0, "parameters": ["stem.x"], "buffers": []},
                {
                    "name": "mlp",
                    "block_class": 1,
                    "parameters": ["mlp.up.weight", "mlp.down.weight"],
                    "buffers": [],
                },
            ],
            "parameters": parameters,
            "buffers": [],
        },
        "prediction": {
            "step_time": 3.5,
            "lower_bound": 3.325,
            "gap": 0.05,
            "termination": "optimal",
            "tokens_per_second": 585.0,
            "samples_per_second": 4.57,
            "mfu": 0.5,
            "flop_per_step": 10**12,
            "peak_memory": 56 * _GIB,
            "memory_limit": 74 * _GIB,
            "time": {
                "compute": 2.0,
                "recompute": 0.0,
                "exposed_tp": 0.5,
                "exposed_dp": 0.25,
                "exposed_pp": 0.125,
                "bubble": 0.5,
                "optimizer": 0.125,
            },
            "stages": [memory, memory | {"activations": 20 * _GIB, "peak": 46 * _GIB}],
        },
        "step": {
            "units": [
                {"forward": [0.125, 0.125], "backward": [0.375, 0.0]},
                {"forward": [0.25, 0.0], "backward": [0.25, 0.125]},
            ],
            "stages": [
                {"units": [[0, 1]], "collectives": 0.25, "optimizer": 0.125},
                {"units": [[1, 1]], "collectives": 0.25, "optimizer": 0.125},
            ],
            "gathering": "never",
            "reduction": "last",
            "messages": "awaited",
        },
        "baselines": [
            {"name": "DDP", "step_time": None, "peak_memory": None, "reason": "needs 118 GiB"},
            {"name": "FSDP", "step_time": 4.2, "peak_memory": 50 * _GIB},
        ],
        "considered": [
            {"label": "pp 2 x tp 2", "step_time": 3.5, "peak_memory": 56 * _GIB},
            {"label": "tp 4", "step_time": 5.25, "peak_memory": 30 * _GIB},
        ],
        "pins": [{"name": "tp", "value": "2"}],
        "notes": ["aten.foo has no rule: replicated"],
    }


@pytest.fixture
def plan_data() -> dict[str, Any]:
    """JSON data of a sound plan, to be changed freely."""
    return sample_plan_data()


@pytest.fixture
def plan() -> Plan:
    """A sound plan."""
    return Plan.model_validate(sample_plan_data())


@pytest.fixture
def root() -> Path:
    """Root of the repository."""
    return ROOT
