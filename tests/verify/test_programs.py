"""Emitted programs on gloo ranks: loss and every gradient equal the unsharded model's."""

import dataclasses
from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.emit import emit_program
from autoplan.ir.mesh import Mesh
from autoplan.ir.placement import Shard
from autoplan.verify.compare import compare
from autoplan.verify.launch import run_programs
from autoplan.verify.reference import write_reference
from tests.plans import Setup, make_plan

pytestmark = pytest.mark.dist

SEQ_LEN = 16
MICRO_BATCH_SIZE = 2

TWO_RANKS = {
    "ddp": Setup(mesh=Mesh(dp_replicate=2), microbatches=2),
    "zero1": Setup(mesh=Mesh(dp_shard=2), zero=1, microbatches=2),
    "zero2": Setup(mesh=Mesh(dp_shard=2), zero=2, microbatches=2),
    "zero3": Setup(mesh=Mesh(dp_shard=2), zero=3, microbatches=2),
    "tp": Setup(mesh=Mesh(tp=2), microbatches=2),
    "tp_sequence": Setup(mesh=Mesh(tp=2), boundary=Shard(1)),
    "tp_recompute": Setup(mesh=Mesh(tp=2), recompute="full"),
    "tp_random_1": Setup(mesh=Mesh(tp=2), seed=1),
    "tp_random_2": Setup(mesh=Mesh(tp=2), seed=2, boundary=Shard(2)),
    "gpipe": Setup(mesh=Mesh(pp=2), schedule="gpipe", microbatches=4),
    "1f1b": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=4),
    "1f1b_recompute": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=4, recompute="full"),
}
FOUR_RANKS = {
    "tp_pp": Setup(mesh=Mesh(pp=2, tp=2), schedule="1f1b", microbatches=4, boundary=Shard(1)),
    "dp_tp": Setup(mesh=Mesh(dp_replicate=2, tp=2)),
    "fsdp_tp": Setup(mesh=Mesh(dp_shard=2, tp=2), zero=3, recompute="full", boundary=Shard(1)),
    "hsdp": Setup(mesh=Mesh(dp_replicate=2, dp_shard=2), zero=2),
    "fsdp_pp": Setup(mesh=Mesh(dp_shard=2, pp=2), zero=2, schedule="gpipe", microbatches=2),
}


@pytest.fixture(scope="module", params=["gpt2", "llama3-8b", "nanogpt"])
def captured(request):
    name = request.param
    source = load_model(name, overrides={"attention_dropout": 0.0} if name == "llama" else {})
    source = source.reduced(layers=2, tp=2)
    assert source is not None
    found = capture(source, seq_len=SEQ_LEN, dtype="float32")
    return source, found.at(MICRO_BATCH_SIZE), found.record()


@pytest.mark.parametrize("setups", [TWO_RANKS, FOUR_RANKS], ids=["2_ranks", "4_ranks"])
def test_loss_and_gradients_equal_the_unsharded_models(captured, setups, tmp_path: Path):
    source, graph, record = captured
    plans, programs, losses = [], [], []
    for name, setup in setups.items():
        plan = make_plan(graph, record, setup, seq_len=SEQ_LEN)
        reference = tmp_path / f"{setup.samples(MICRO_BATCH_SIZE)}.pt"
        if not reference.exists():
            write_reference(source, plan, reference)
        losses.append(write_reference(source, plan, reference))
        emit_program(plan, tmp_path / name)
        plans.append(plan)
        programs.append((tmp_path / name, reference))
    ranks = next(iter(setups.values())).mesh.ranks
    findings = run_programs(programs, ranks=ranks, work=tmp_path / "work", timeout=300)
    trainable = sum(p.trainable for p in graph.parameters)
    for name, plan, found, loss in zip(setups, plans, findings, losses, strict=True):
        report = compare(plan, found, loss)
        print(name, report)
        assert dataclasses.replace(report, name=name).compared == trainable
