"""Reduced and widened forms of a plan."""

import base64
import zlib

import pytest
import torch

from autoplan.capture import capture, load_model
from autoplan.errors import UsageError
from autoplan.ir.graph_record import BufferRecord
from autoplan.ir.mesh import Mesh
from autoplan.ir.placement import Shard
from autoplan.ir.plan import Plan
from autoplan.ir.record import strategies_from_record
from autoplan.verify.precision import in_precision
from autoplan.verify.reduced import reduced_plan
from tests.plans import Setup, make_plan


@pytest.fixture(scope="module")
def large():
    source = load_model("nanogpt", overrides={"n_layer": 6, "n_embd": 256, "n_head": 8})
    found = capture(source, seq_len=128, dtype="bfloat16")
    setup = Setup(mesh=Mesh(pp=4, tp=4, dp_shard=2), zero=3, microbatches=32, boundary=Shard(1))
    setup.schedule = "1f1b"
    return source, make_plan(found.at(2), found.record(), setup, seq_len=128)


def test_every_axis_stays_an_axis(large):
    source, plan = large
    small = reduced_plan(plan, source, max_parameters=10**9).plan
    assert small.mesh.model_dump() == {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "tp": 2}
    assert (small.zero, small.pipeline.schedule) == (3, "1f1b")
    assert [s.last for s in small.pipeline.stages][-1] == len(small.graph.instances)
    assert small.workload.global_batch == small.pipeline.microbatches * 2 * 2
    assert small.model.num_parameters < plan.model.num_parameters


def test_operators_keep_the_strategies_of_the_plan(large):
    source, plan = large
    small = reduced_plan(plan, source, max_parameters=10**9).plan
    for before, after in zip(
        strategies_from_record(plan.graph), strategies_from_record(small.graph), strict=True
    ):
        assert [(s.inputs, s.outputs, s.call) for s in before.values()] == [
            (s.inputs, s.outputs, s.call) for s in after.values()
        ]


def test_what_is_reduced_is_said(large):
    source, plan = large
    note = reduced_plan(plan, source, max_parameters=10**9).note
    for part in ("pp 2 of 4", "tp 2 of 4", "dp_shard 2", "sequence 64", "parameters"):
        assert part in note


def test_another_model_is_not_the_plans(large):
    _, plan = large
    with pytest.raises(UsageError, match="differs from the plan's"):
        reduced_plan(plan, load_model("gpt2"), max_parameters=10**9)


def test_half_precision_becomes_float32_everywhere(large):
    _, plan = large
    wide = in_precision(plan, "float32")
    assert "bfloat16" in plan.model_dump_json()
    assert "bfloat16" not in wide.graph.model_dump_json()
    assert (wide.graph.dtype, wide.workload.dtype) == ("float32", "float32")
    assert in_precision(wide, "float32") is wide


def test_values_of_half_precision_buffers_are_kept(plan_data):
    values = torch.tensor([1.5, -2.0, 0.0078125], dtype=torch.bfloat16)
    raw = values.view(torch.uint8).numpy().tobytes()
    plan_data["graph"]["dtype"] = "bfloat16"
    plan_data["graph"]["buffers"] = [
        BufferRecord(
            fqn="b",
            shape=(3,),
            dtype="bfloat16",
            persistent=False,
            data=base64.b64encode(zlib.compress(raw)).decode(),
        ).model_dump()
    ]
    (buffer,) = in_precision(Plan.model_validate(plan_data), "float32").graph.buffers
    wide = torch.frombuffer(
        bytearray(zlib.decompress(base64.b64decode(buffer.data))), dtype=torch.float32
    )
    assert buffer.dtype == "float32"
    assert wide.tolist() == values.tolist()


@pytest.mark.parametrize(("vocabulary", "placement"), [(1026, "S(0)"), (1027, "S(0,pad)")])
def test_whether_a_vocabulary_is_padded_depends_on_the_reduced_size(vocabulary, placement):
    table = "transformer.wte.weight"
    sizes = {"n_layer": 6, "n_embd": 64, "n_head": 4, "vocab_size": vocabulary}
    source = load_model("gpt2", overrides=sizes)
    found = capture(source, seq_len=128, dtype="float32")
    setup = Setup(mesh=Mesh(tp=4), stored={table: Shard(0, pad=True)})
    plan = make_plan(found.at(2), found.record(), setup, seq_len=128)
    small = reduced_plan(plan, source, max_parameters=10**9).plan
    (stored,) = [p for p in small.graph.parameters if p.fqn == table]
    assert stored.placement == placement
    assert stored.shape[0] % 2 == vocabulary % 2
    chosen = strategies_from_record(small.graph)[-1].values()
    assert "vocab_cross_entropy" in {strategy.call for strategy in chosen}
