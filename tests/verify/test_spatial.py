"""Rows of images and volumes on several ranks: from end to end without gathering one.

Every operator takes the strategy that keeps the rows sharded where its rule offers one. The
plan is then emitted, run on gloo ranks and compared with the unsharded model.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

import tests.plans
from autoplan.capture import capture, load_model
from autoplan.costs.block import collectives
from autoplan.emit import emit_program
from autoplan.ir.mesh import Group, Mesh
from autoplan.ir.placement import Shard, conversion, parse_placement
from autoplan.ir.record import strategies_from_record
from autoplan.profiles import load_cluster
from autoplan.verify.compare import compare
from autoplan.verify.launch import run_programs
from autoplan.verify.precision import in_precision
from autoplan.verify.reference import write_reference
from tests.plans import Setup, make_plan
from tests.runtime.conftest import _launch

FILE = Path(__file__).parent / "spatial_models.py"
SEQ_LEN = 8
DENSE = {"dense": True}
MODELS = {
    "resnet": ("resnet", {"size": 64}, 2),
    "convnext": ("convnext", {"size": 64}, 2),
    "unet2d": ("unet2d", {"size": 32, **DENSE}, 2),
    "unet2d_transposed": ("unet2d", {"size": 32, "up": "transposed", **DENSE}, 2),
    "unet3d": ("unet3d", {"size": 16, "dims": 3, **DENSE}, 2),
    "unet3d_trilinear": ("unet3d", {"size": 16, "dims": 3, "up": "trilinear", **DENSE}, 2),
    "vit": ("vit", {"size": 32}, 1),
}
# What a classifier does once its image is averaged: rows of one number a channel.
SMALL = 256


def load(name):
    factory, overrides, dim = MODELS[name]
    source = load_model(f"{FILE}:{factory}", overrides=overrides)
    return source, capture(source, seq_len=SEQ_LEN, dtype="float32"), dim


@pytest.fixture
def spatial(monkeypatch):
    prefer_rows(monkeypatch)


def prefer_rows(monkeypatch):
    """Let plans prefer sharded rows, and no conversion, over any saving."""
    priced = tests.plans._price

    def price(op, block, strategy, produced, names, stored, uses, ranks):
        cost = priced(op, block, strategy, produced, names, stored, uses, ranks)
        if cost is None:
            return None
        for name, state in zip(op.inputs, tests.plans._states(op, block, strategy), strict=True):
            tensor = block.tensor(name)
            if name in produced and len(tensor.shape) > 2:
                pair = conversion(produced[name], state, differentiable=tensor.requires_grad)
                cost += 1e9 * ((pair.forward is not None) + (pair.backward is not None))
        for name, placement in zip(op.inputs, strategy.inputs, strict=True):
            deep = len(block.tensor(name).shape) > 2 and name not in block.parameters
            cost += 1e6 * (deep and not (isinstance(placement, Shard) and placement.dim > 0))
            # From the batch on: rows, no channels.
            first = block.tensor(name).kind == "input"
            cost += 1e6 * (first and isinstance(placement, Shard) and placement.dim < 2)
        return cost + 1e6 * any(isinstance(p, Shard) and p.dim == 0 for p in strategy.inputs[:1])

    monkeypatch.setattr(tests.plans, "_price", price)


def spatial_plan(name, ranks, micro_batch_size=2):
    source, captured, dim = load(name)
    graph = captured.at(micro_batch_size)
    setup = Setup(mesh=Mesh(tp=ranks), boundary=Shard(dim))
    return source, graph, make_plan(graph, captured.record(), setup, seq_len=SEQ_LEN)


def charged(graph, plan, *, conversions_only=False):
    """Collectives of a step, as (kind, payload, backward)."""
    count = Counter()
    chosen = strategies_from_record(plan.graph)
    for instance in graph.instances:
        index = instance.block_class
        record = plan.graph.classes[index]
        for call in collectives(
            graph.classes[index],
            chosen[index],
            tuple(map(parse_placement, record.boundary_in)),
            tuple(map(parse_placement, record.boundary_out)),
            Group(plan.mesh.tp, plan.mesh.tp),
            load_cluster("cpu:2"),
        ):
            count[call.kind.value, call.payload, call.backward] += 1
        if conversions_only:
            for strategy in chosen[index].values():
                count.subtract((c.kind.value, c.payload, c.backward) for c in strategy.inner)
    return +count


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_rows_stay_sharded_from_end_to_end(name, ranks, spatial):
    _, graph, plan = spatial_plan(name, ranks)
    moved = charged(graph, plan, conversions_only=True)
    large = {call: n for call, n in moved.items() if call[1] > SMALL}
    assert not large, "no activation changes its placement"
    halos = sum(n for (kind, _, _), n in charged(graph, plan).items() if kind == "p2p")
    assert halos or name == "vit", "neighbours' rows are fetched"
    work = sharded = 0
    chosen = strategies_from_record(plan.graph)
    for instance in graph.instances:
        for op in graph.block_class(instance).ops:
            work += op.flop
            outputs = chosen[instance.block_class][op.name].outputs
            sharded += op.flop * isinstance(outputs[0], Shard)
    assert sharded > 0.98 * work


def run(plans, ranks, tmp_path):
    """Run the programs of (name, source, graph, plan) in float64, each against its model."""
    programs, losses = [], []
    plans = [
        (name, source, graph, in_precision(plan, "float64")) for name, source, graph, plan in plans
    ]
    for name, source, _, plan in plans:
        losses.append(write_reference(source, plan, tmp_path / f"{name}.pt"))
        emit_program(plan, tmp_path / name)
        programs.append((tmp_path / name, tmp_path / f"{name}.pt"))
    results = run_programs(programs, ranks=ranks, work=tmp_path / "work", timeout=400)
    for (name, _, graph, plan), loss, findings in zip(plans, losses, results, strict=True):
        report = compare(plan, findings, loss)
        assert report.compared == sum(p.trainable for p in graph.parameters), name
    return results


@pytest.mark.dist
@pytest.mark.slow
def test_programs_of_any_layout_equal_the_unsharded_model(tmp_path):
    plans = []
    for name in ("resnet", "convnext", "unet2d", "unet3d"):
        source, captured, _ = load(name)
        graph = captured.at(2)
        setups = {f"{name}_{seed}": Setup(mesh=Mesh(tp=2), seed=seed) for seed in range(2)}
        for level in ("selective", "full"):
            setups[f"{name}_{level}"] = Setup(
                mesh=Mesh(tp=2), boundary=Shard(2), microbatches=2, recompute=level
            )
        for label, setup in setups.items():
            plan = make_plan(graph, captured.record(), setup, seq_len=SEQ_LEN)
            plans.append((label, source, graph, plan))
    run(plans, 2, tmp_path)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_programs_on_sharded_rows_equal_the_unsharded_model(ranks, spatial, tmp_path):
    plans = []
    for name in MODELS:
        source, graph, plan = spatial_plan(name, ranks)
        plans.append((name, source, graph, plan))
    found = run(plans, ranks, tmp_path)
    for (name, _, graph, plan), findings in zip(plans, found, strict=True):
        # Priced in float32, run in float64.
        want = Counter()
        for (kind, payload, _), count in charged(graph, plan).items():
            want[kind, 2 * payload] += count
        for finding in findings:
            assert Counter(finding.collectives) == want, name


@pytest.mark.dist
@pytest.mark.slow
def test_running_statistics_are_those_of_the_unsharded_model(monkeypatch, tmp_path):
    source, captured, _ = load("resnet")
    graph, record, mesh = captured.at(2), captured.record(), Mesh(tp=2)
    setups = {
        "channels": Setup(mesh=mesh, boundary=Shard(1)),
        "again": Setup(mesh=mesh, boundary=Shard(1), microbatches=2, recompute="full"),
        "selective": Setup(mesh=mesh, boundary=Shard(1), microbatches=2, recompute="selective"),
        "whole": Setup(mesh=mesh, microbatches=2, recompute="full"),
        "whole_selective": Setup(mesh=mesh, microbatches=2, recompute="selective"),
        "mixed": Setup(mesh=mesh, seed=5),
    }
    plans = {k: make_plan(graph, record, setup, seq_len=SEQ_LEN) for k, setup in setups.items()}
    prefer_rows(monkeypatch)
    for level in ("none", "selective", "full"):
        setup = Setup(mesh=mesh, boundary=Shard(2), microbatches=2, recompute=level)
        plans[f"rows_{level}"] = make_plan(graph, record, setup, seq_len=SEQ_LEN)
    calls = set()
    arguments = []
    for name, plan in plans.items():
        path = tmp_path / f"{name}.pt"
        write_reference(source, plan, path)
        reference = torch.load(path, weights_only=True)
        module = source.build(dtype="float32")
        module.load_state_dict(reference["state"], strict=False)
        for share in range(plan.pipeline.microbatches):
            module(**{k: v[2 * share : 2 * share + 2] for k, v in reference["batch"].items()})
        torch.save(reference | {"buffers": dict(module.named_buffers())}, path)
        emit_program(plan, tmp_path / name)
        arguments += [str(tmp_path / name), str(path)]
        for chosen in strategies_from_record(plan.graph):
            calls |= {s.call for s in chosen.values() if "batch_norm" in s.call}
    assert calls == {"batch_norm", "channel_batch_norm", "synced_batch_norm"}
    output = _launch(str(FILE.parent / "ranks_statistics.py"), 2, *arguments)
    assert output.count(" ok") == len(plans), output
