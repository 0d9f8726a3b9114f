"""Programs with a padded vocabulary: values, gradients, and the collectives they issue."""

from __future__ import annotations

from collections import Counter
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
from tests.verify.test_programs import charged

pytestmark = pytest.mark.dist

_TABLE = "transformer.wte.weight"
_PADDED = {_TABLE: Shard(0, pad=True)}
_SEQ_LEN, _MICRO_BATCH = 8, 2
_SETUPS = {
    2: {
        "tp": Setup(mesh=Mesh(tp=2), microbatches=2, stored=_PADDED),
        "tp_sequence_recompute": Setup(
            mesh=Mesh(tp=2), boundary=Shard(1), recompute="full", stored=_PADDED
        ),
        "tp_random": Setup(mesh=Mesh(tp=2), seed=5, stored=_PADDED),
    },
    3: {"tp": Setup(mesh=Mesh(tp=3), stored=_PADDED)},
    4: {
        "tp_pp": Setup(
            mesh=Mesh(pp=2, tp=2), schedule="1f1b", microbatches=4, boundary=Shard(1),
            stored=_PADDED,
        ),
        "fsdp_tp": Setup(mesh=Mesh(dp_shard=2, tp=2), zero=3, stored=_PADDED),
        "zero1_tp": Setup(mesh=Mesh(dp_shard=2, tp=2), zero=1, stored=_PADDED),
        "tp": Setup(mesh=Mesh(tp=4), stored=_PADDED),
    },
}  # fmt: skip


@pytest.mark.parametrize("ranks", list(_SETUPS))
def test_programs_with_a_padded_vocabulary_equal_the_unsharded_model(
    ranks: int, tmp_path: Path
) -> None:
    sizes = {"n_layer": 2, "n_embd": 48, "n_head": 12, "vocab_size": 127}
    if ranks == 3:
        sizes["vocab_size"] = 128
    source = load_model("gpt2", overrides=sizes)
    captured = capture(source, seq_len=_SEQ_LEN, dtype="float32")
    graph = captured.at(_MICRO_BATCH)
    plans, programs, losses = [], [], []
    for name, setup in _SETUPS[ranks].items():
        plan = make_plan(graph, captured.record(), setup, seq_len=_SEQ_LEN)
        calls = {
            op.strategy.call for block in plan.graph.classes for op in block.ops if op.strategy
        }
        assert {"vocab_embedding", "vocab_cross_entropy"} <= calls
        assert [p.placement for p in plan.graph.parameters if p.fqn == _TABLE] == ["S(0,pad)"]
        losses.append(write_reference(source, plan, tmp_path / f"{name}.pt"))
        emit_program(plan, tmp_path / name)
        plans.append(plan)
        programs.append((tmp_path / name, tmp_path / f"{name}.pt"))
    findings = run_programs(programs, ranks=ranks, work=tmp_path / "work", timeout=170)
    for plan, found, loss in zip(plans, findings, losses, strict=True):
        report = compare(plan, found, loss)
        assert report.compared == len(graph.parameters)
        for finding in found:
            stage = finding.rank // (ranks // plan.mesh.pp)
            got = Counter(finding.collectives)
            assert charged(plan, stage, again=False) <= got
            assert got <= charged(plan, stage, again=True)
