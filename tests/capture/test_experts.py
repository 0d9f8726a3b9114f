"""Routed experts: one operator whatever the family, equal to the model's own code."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import autoplan
from autoplan.capture import capture, load_model
from autoplan.errors import CaptureError, UsageError
from autoplan.ir.experts import EXPERTS, experts_regions
from autoplan.runtime import SINGLE
from autoplan.runtime import experts as runtime_experts

pytest.importorskip("transformers")

HAND_WRITTEN = Path(__file__).parents[1] / "verify/moe_model.py"
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 1,
         "bos_token_id": 2}  # fmt: skip
# Configuration, then what the region must say: layout, activation, transposed, biased.
FAMILIES = {
    "mixtral": (
        {"num_hidden_layers": 2, "intermediate_size": 48, "num_local_experts": 4,
         "num_experts_per_tok": 2},
        ("concatenated", "silu", False, False),
    ),
    "qwen3_moe": (
        {"num_hidden_layers": 2, "moe_intermediate_size": 24, "num_experts": 6,
         "num_experts_per_tok": 3, "norm_topk_prob": True},
        ("concatenated", "silu", False, False),
    ),
    "olmoe": (
        {"num_hidden_layers": 2, "intermediate_size": 24, "num_experts": 4,
         "num_experts_per_tok": 2, "num_key_value_heads": 4},
        ("concatenated", "silu", False, False),
    ),
    "deepseek_v3": (
        {"num_hidden_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 48,
         "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
         "n_group": 4, "topk_group": 2, "n_shared_experts": 1, "q_lora_rank": 16,
         "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
         "num_key_value_heads": 4},
        ("concatenated", "silu", False, False),
    ),
    "gpt_oss": (
        {"num_hidden_layers": 2, "intermediate_size": 24, "num_local_experts": 4,
         "num_experts_per_tok": 2, "sliding_window": 4},
        ("interleaved", "swiglu_oai", True, True),
    ),
}  # fmt: skip


def source_of(family, **more):
    from autoplan.capture.hf import huggingface_source

    config = {"model_type": family, **SMALL, **FAMILIES[family][0], **more}
    if family == "deepseek_v3":
        config.pop("head_dim")
    return huggingface_source(name=family, spec=family, form="hf", config=config, overrides={})


def experts_of(graph):
    return [region for block in graph.classes for region in experts_regions(block)]


_SLOW = {"qwen3_moe", "olmoe"}


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.slow if f in _SLOW else ()) for f in FAMILIES]
)
def test_a_family_has_one_operator_for_its_experts(family, run_graph):
    source = source_of(family)
    graph = capture(source, seq_len=8, dtype="float32").at(2)
    targets = {op.target for block in graph.classes for op in block.ops}
    assert EXPERTS in targets
    assert not targets & {"aten._grouped_mm.default", "aten.histc.default"}
    for region in experts_of(graph):
        said = region.layout, region.activation, region.transposed, region.biased
        assert said == FAMILIES[family][1]
        assert region.tokens == 16
    torch.manual_seed(0)
    module, batch = source.build(), source.batch(2, 8, seed=1)
    module.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.1)  # some families leave router or biases at zero
    expected, loss = module(**batch), run_graph(graph, module, batch)
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    want, got = (
        torch.autograd.grad(value, list(module.parameters()), allow_unused=True)
        for value in (expected, loss)
    )
    assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_the_loss_of_the_router_is_captured(run_graph):
    source = source_of("mixtral", output_router_logits=True, router_aux_loss_coef=0.5)
    graph = capture(source, seq_len=8, dtype="float32").at(2)
    module, batch = source.build(), source.batch(2, 8)
    assert_close(run_graph(graph, module, batch), module(**batch), rtol=1e-5, atol=1e-6)


def test_unknown_gating_stays_separate_operators_with_a_note(monkeypatch, run_graph):
    from transformers.models.mixtral import modeling_mixtral

    def odd(self, x):
        gate, up = x.chunk(2, dim=-1)
        return torch.sin(gate) * up

    monkeypatch.setattr(modeling_mixtral.MixtralExperts, "_apply_gate", odd)
    source = source_of("mixtral")
    graph = capture(source, seq_len=8, dtype="float32").at(2)
    assert not experts_of(graph)
    assert "aten._grouped_mm.default" in {op.target for b in graph.classes for op in b.ops}
    (note,) = [note for note in graph.notes if "MixtralExperts" in note]
    assert "model.layers.0.mlp.experts" in note
    assert "register_experts" in note


@pytest.mark.parametrize("name", ["stacked", "separate"])
def test_an_adapter_stands_for_a_loop_over_experts(name, run_graph):
    source = load_model(f"{HAND_WRITTEN}:{name}")
    captured = capture(source, seq_len=8, dtype="float32")
    module = source.build()
    for size in (2, 5):
        graph, batch = captured.at(size), source.batch(size, 8, seed=size)
        assert [region.tokens for region in experts_of(graph)] == [8 * size]
        expected, loss = module(**batch), run_graph(graph, module, batch)
        assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        want, got = (
            torch.autograd.grad(value, list(module.parameters()), allow_unused=True)
            for value in (expected, loss)
        )
        assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_without_the_adapter_the_loop_is_refused(monkeypatch):
    from autoplan.capture import experts

    source = load_model(f"{HAND_WRITTEN}:stacked")
    monkeypatch.setattr(experts, "_ADAPTERS", {})
    with pytest.raises(CaptureError):
        capture(source, seq_len=8, dtype="float32")


def operands(layout="plain", transposed=False, biased=False, dtype=torch.float64):
    """Arguments of `autoplan.experts` for 6 tokens, 2 of 3 experts; one has no token."""
    packed = 10 * (2 if layout in ("concatenated", "interleaved") else 1)

    def leaf(*shape):
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    def weight(rows, columns):
        return leaf(3, columns, rows) if transposed else leaf(3, rows, columns)

    found = {
        "hidden": leaf(6, 8),
        "index": torch.tensor([[0, 2], [2, 0]] * 3),
        "weights": leaf(6, 2),
        "up": weight(packed, 8),
        "down": weight(8, 10),
    }
    if layout == "separate":
        found["gate"] = weight(10, 8)
    if biased:
        found |= {"up_bias": leaf(3, packed), "down_bias": leaf(3, 8)}
        if layout == "separate":
            found["gate_bias"] = leaf(3, 10)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["plain", "concatenated", "interleaved", "separate"])
def test_the_runtime_computes_what_the_operator_means(layout, dtype):
    """Sorted and grouped, in the program; expert by expert, here."""
    torch.manual_seed(0)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    for transposed, biased in itertools.product((False, True), repeat=2):
        given = operands(layout, transposed, biased, dtype)
        clamped = layout == "interleaved"
        settings = {
            "activation": "swiglu_oai" if clamped else "relu2",
            "layout": layout,
            "transposed": transposed,
            "alpha": 1.7 if clamped else 1.0,
            "limit": 0.8 if clamped else 0.0,
        }
        want = autoplan.experts(**given, **settings)
        got = runtime_experts(**given, **settings, axis=SINGLE)
        leaves = [x for x in given.values() if x.requires_grad]
        seed = torch.randn_like(want)
        for a, b in zip(
            (want, *torch.autograd.grad(want, leaves, seed)),
            (got, *torch.autograd.grad(got, leaves, seed)),
            strict=True,
        ):
            scale = a.abs().max().item()
            assert_close(b, a, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "swish"}, "activation 'swish' is none of silu"),
        ({"layout": "packed"}, "layout 'packed' is none of plain"),
        ({"layout": "separate"}, "no gate"),
        ({"gate": torch.zeros(3, 10, 8), "layout": "plain"}, "a gate"),
        ({"down": torch.zeros(3, 10, 8)}, "has shape"),
        ({"up": torch.zeros(10, 8)}, "3 dims"),
        ({"index": torch.zeros(6, 3, dtype=torch.int64)}, "one for each of the weights"),
        ({"index": torch.zeros(6, 2)}, "integers"),
        ({"down_bias": torch.zeros(8)}, "down_bias has shape"),
        ({"activation": "swiglu_oai"}, "needs a gate"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(CaptureError, match=message) as caught:
        autoplan.experts(**operands() | change)
    assert "help(autoplan.experts)" in caught.value.hint


def test_an_adapter_is_for_a_class_of_modules():
    with pytest.raises(UsageError, match="class of modules"):
        autoplan.register_experts(nn.Linear(2, 2))
