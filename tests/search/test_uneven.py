"""Sizes that ranks don't divide: a program that compiles, or a refusal with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.emit import program_files
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.plan_checks import check_plan
from autoplan.profiles import load_cluster
from autoplan.rules import reasons
from autoplan.solver.search import solve

_SEQ_LEN = 12
_MODELS: dict[str, dict[str, object]] = {
    "gpt2": {"n_layer": 2, "n_embd": 60, "n_head": 6, "vocab_size": 257},
    "llama3-8b": {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 90,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 259,
    },
    "bert-base": {
        "num_hidden_layers": 2, "hidden_size": 72, "intermediate_size": 100,
        "num_attention_heads": 6, "vocab_size": 101,
    },
    "mixtral-8x7b": {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 90,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 101,
        "num_local_experts": 4,
    },
}  # fmt: skip
_CAPTURED: dict[str, Captured] = {}


def _captured(name: str) -> Captured:
    if name not in _CAPTURED:
        source = load_model(name, overrides=_MODELS[name])
        _CAPTURED[name] = capture(source, seq_len=_SEQ_LEN, dtype="float32")
    return _CAPTURED[name]


def _fast_network(ranks: int) -> Cluster:
    """Messages and kernels nearly free, so that dividing small layers pays."""
    cluster = load_cluster(f"cpu:{ranks}")
    link = replace(cluster.intra, latency=1e-9, bandwidth=1e12)
    accelerator = replace(cluster.accelerator, kernel_latency=1e-9)
    return replace(cluster, intra=link, inter=link, accelerator=accelerator)


def _solve(name: str, **pins: str) -> Plan:
    ranks = int(pins.get("tp", "1")) * int(pins.get("pp", "1"))
    workload = WorkloadRecord(global_batch=4, seq_len=_SEQ_LEN, dtype="float32", optimizer="adamw")
    return solve(_captured(name), workload, _fast_network(ranks), pins=pins)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama3-8b",
        pytest.param("bert-base", marks=pytest.mark.slow),
        pytest.param("mixtral-8x7b", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("tp", ["3", "5", "7", "16"])
@pytest.mark.parametrize("pp", ["1", "2"])
def test_degrees_that_divide_nothing_give_a_sound_program(name: str, tp: str, pp: str) -> None:
    plan = _solve(name, tp=tp, pp=pp)
    assert check_plan(plan) == []
    compile(program_files(plan)["model.py"], "model.py", "exec")


def test_an_odd_vocabulary_is_stored_padded_at_both_ends_of_the_pipeline() -> None:
    plan = _solve("gpt2", tp="5", pp="2")
    (table,) = [p for p in plan.graph.parameters if p.fqn == "transformer.wte.weight"]
    assert (table.placement, tuple(table.shape)) == ("S(0,pad)", (257, 60))
    text = program_files(plan)["model.py"]
    assert "shape=(257, 60), dim=0, padded=True" in text
    assert "classes=257" in text


def test_reasons_name_the_size_and_the_ranks() -> None:
    graph = _captured("gpt2").at(2)
    said = {
        reason for block in graph.classes for op in block.ops for reason in reasons(op, block, 7)
    }
    assert (
        "dim 0 of transformer_wte_weight is 257, which 7 ranks don't divide: padded to 259" in said
    )
    assert any("is 60, which 7 ranks don't divide" in reason for reason in said)
    assert any("too few for 7 ranks" in reason for reason in said)


def test_what_divides_needs_no_reason() -> None:
    graph = _captured("gpt2").at(2)
    said = [
        reason for block in graph.classes for op in block.ops for reason in reasons(op, block, 2)
    ]
    assert not [reason for reason in said if "is 60" in reason]
