"""Programs with routed experts on gloo ranks, each way of dividing them forced in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.emit import emit_program
from autoplan.ir.experts import EXPERTS
from autoplan.ir.mesh import Mesh
from autoplan.ir.placement import Partial, Replicate, Shard
from autoplan.verify.compare import compare
from autoplan.verify.launch import run_programs
from autoplan.verify.reference import write_reference
from tests import plans
from tests.plans import Setup, make_plan

pytestmark = pytest.mark.dist

SEQ_LEN = 8
FILE = Path(__file__).parent / "moe_model.py"
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 2, "hidden_size": 32, "head_dim": 8,
    "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 4,
    "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
# The expert's call and its output, and where blocks begin and end.
WAYS = {
    "tokens": ("experts", Shard, Shard(1)),
    "experts": ("sharded_experts", Partial, Replicate()),
    "experts_sequence": ("sharded_experts", Partial, Shard(1)),
    "features": ("row_parallel_experts", Partial, Replicate()),
    "replicated": ("experts", Replicate, Replicate()),
}


def source_of(name):
    if name != "gpt_oss":
        return load_model(f"{FILE}:{name}")
    pytest.importorskip("transformers")
    from autoplan.capture.hf import huggingface_source

    return huggingface_source(name=name, spec=name, form="hf", config=GPT_OSS, overrides={})


@pytest.mark.parametrize("name", ["stacked", "separate", "gpt_oss"])
def test_every_way_of_dividing_experts_equals_the_model(name, tmp_path, monkeypatch):
    source = source_of(name)
    found = capture(source, seq_len=SEQ_LEN, dtype="float32")
    graph, legal = found.at(2), plans.strategies
    made, programs = [], []
    for label, (call, output, boundary) in WAYS.items():

        def only(op, block, ranks, call=call, output=output):
            options = legal(op, block, ranks)
            if op.target != EXPERTS:
                return options
            return [s for s in options if s.call == call and isinstance(s.outputs[0], output)]

        monkeypatch.setattr(plans, "strategies", only)
        setup = Setup(mesh=Mesh(tp=2), boundary=boundary)
        plan = make_plan(graph, found.record(), setup, seq_len=SEQ_LEN)
        reference = tmp_path / f"{label}.pt"
        made.append((label, plan, write_reference(source, plan, reference)))
        emit_program(plan, tmp_path / label)
        programs.append((tmp_path / label, reference))
    findings = run_programs(programs, ranks=2, work=tmp_path / "work", timeout=300)
    for (label, plan, loss), ranks in zip(made, findings, strict=True):
        report = compare(plan, ranks, loss)
        assert report.compared == len(graph.parameters), label


def test_stages_of_a_pipeline_hold_experts(tmp_path):
    source = source_of("stacked")
    found = capture(source, seq_len=SEQ_LEN, dtype="float32")
    setups = {
        "full": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=2, recompute="full"),
        "selective": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=2, recompute="selective"),
        "sharded": Setup(mesh=Mesh(tp=2), microbatches=2, recompute="selective"),
    }
    made, programs = [], []
    for label, setup in setups.items():
        plan = make_plan(found.at(2), found.record(), setup, seq_len=SEQ_LEN)
        reference = tmp_path / f"{label}.pt"
        made.append((plan, write_reference(source, plan, reference)))
        emit_program(plan, tmp_path / label)
        programs.append((tmp_path / label, reference))
    findings = run_programs(programs, ranks=2, work=tmp_path / "work", timeout=300)
    for (plan, loss), ranks in zip(made, findings, strict=True):
        compare(plan, ranks, loss)
