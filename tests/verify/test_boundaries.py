"""Programs whose blocks hand on several tensors: a memory that ends early, U-Net skips."""

from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.emit import emit_program
from autoplan.ir.mesh import Mesh
from autoplan.verify.compare import compare
from autoplan.verify.launch import run_programs
from autoplan.verify.reference import write_reference
from tests.plans import Setup, make_plan

pytestmark = pytest.mark.dist

MODELS = Path(__file__).parents[1] / "capture/stack_models.py"
SETUPS = {
    "gpipe": Setup(mesh=Mesh(pp=2), schedule="gpipe", microbatches=2),
    "1f1b_recompute": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=2, recompute="full"),
    "tp": Setup(mesh=Mesh(tp=2), microbatches=1),
}


@pytest.mark.parametrize(("factory", "seq_len"), [("encoder_decoder", 8), ("unet", 64)])
def test_many_boundary_tensors(factory, seq_len, tmp_path: Path):
    source = load_model(f"{MODELS}:{factory}")
    found = capture(source, seq_len=seq_len, dtype="float32")
    graph = found.at(2)
    assert max(len(block.inputs) for block in graph.classes) >= 2
    assert any(i.unused for i in graph.instances) == (factory == "encoder_decoder")
    plans, programs, losses = [], [], []
    for name, setup in SETUPS.items():
        plan = make_plan(graph, found.record(), setup, seq_len=seq_len)
        reference = tmp_path / f"{name}.pt"
        losses.append(write_reference(source, plan, reference))
        emit_program(plan, tmp_path / name)
        plans.append(plan)
        programs.append((tmp_path / name, reference))
    findings = run_programs(programs, ranks=2, work=tmp_path / "work", timeout=150)
    for plan, finding, loss in zip(plans, findings, losses, strict=True):
        assert compare(plan, finding, loss).compared == len(graph.parameters)
