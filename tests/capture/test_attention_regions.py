"""Attention of captured models: regions with the kind of their mask, and the values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplan.capture import capture, load_model
from autoplan.capture.source import ModelSource
from autoplan.ir.attention import AttentionRegion, attention_regions
from autoplan.ir.graph import Graph

pytest.importorskip("transformers")

_SEQ_LEN = 8
_SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "attention_dropout": 0.0,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 16}
_T5 = {
    "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 256,
    "decoder_start_token_id": 0, "dropout_rate": 0.0,
}  # fmt: skip
_BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "vocab_size": 256, "decoder_start_token_id": 0, "dropout": 0.0,
}  # fmt: skip
_MODERN = {
    "local_attention": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
_VIT = {**_SMALL, "image_size": 32, "patch_size": 16, "num_labels": 4}
_OPT = {key: value for key, value in _SMALL.items() if key != "intermediate_size"}

# Head, settings, and how often each region occurs.
_MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "llama": ("LlamaForCausalLM", _GROUPED, {"fused 4/2 heads x 8 x 8, causal": 2}),
    "mistral": (
        "MistralForCausalLM",
        {**_GROUPED, "sliding_window": 4},
        {"fused 4/2 heads x 8 x 8, sliding(4)": 2},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**_GROUPED, "sliding_window": 4},
        {"eager 4/2 heads x 8 x 8, explicit": 2},
    ),
    "bert": (
        "BertForMaskedLM",
        {**_SMALL, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0},
        {"fused 4 heads x 8 x 8, none": 2},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**_SMALL, **_MODERN},
        {"fused 4 heads x 8 x 8, none": 1, "fused 4 heads x 8 x 8, local(2)": 1},
    ),
    "vit": ("ViTForImageClassification", _VIT, {"fused 4 heads x 5 x 5, none": 2}),
    "opt": (
        "OPTForCausalLM",
        {**_OPT, "ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0},
        {"fused 4 heads x 8 x 8, causal": 2},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        _T5,
        {"fused 4 heads x 8 x 8, bias": 4, "fused 4 heads x 8 x 8, none": 2},
    ),
    "bart": (
        "BartForConditionalGeneration",
        _BART,
        {"fused 4 heads x 8 x 8, none": 4, "fused 4 heads x 8 x 8, causal": 2},
    ),
}


def _source(folder: Path, model_type: str, head: str, settings: dict[str, Any]) -> ModelSource:
    config = {"model_type": model_type, "architectures": [head], **settings}
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(str(folder))


def _regions(graph: Graph) -> list[AttentionRegion]:
    return [
        region
        for instance in graph.instances
        for region in attention_regions(graph.block_class(instance))
    ]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name not in {"gemma2", "mistral", "t5"}
        else name
        for name in _MODELS
    ],
)
def test_regions_and_values_are_the_models_own(
    name: str, tmp_path: Path, run_graph: Callable[..., torch.Tensor]
) -> None:
    head, settings, expected = _MODELS[name]
    source = _source(tmp_path, name, head, settings)
    graph = capture(source, seq_len=_SEQ_LEN, dtype="float32", dropout=False).at(2)
    assert Counter(map(str, _regions(graph))) == expected
    torch.manual_seed(0)
    module = source.build(dtype="float32")
    with torch.no_grad():  # as initialised, attention hardly shows in the loss
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    assert module.config._attn_implementation != "autoplan"
    batch = source.batch(2, _SEQ_LEN, seed=1)
    loss, whole = run_graph(graph, module, batch), module(**batch)
    torch.testing.assert_close(loss, whole, rtol=1e-6, atol=1e-6)
    weights = [p for p in module.parameters() if p.requires_grad]
    pairs = (torch.autograd.grad(y, weights, allow_unused=True) for y in (loss, whole))
    for mine, theirs in zip(*pairs, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6)


def test_an_eager_region_has_its_operators(tmp_path: Path) -> None:
    head, settings, _ = _MODELS["gemma2"]
    graph = capture(
        _source(tmp_path, "gemma2", head, settings), seq_len=_SEQ_LEN, dtype="float32"
    ).at(2)
    region = _regions(graph)[0]
    assert (region.batch, region.head_dim, region.value_dim, region.fused) == (2, 16, 16, False)
    block = next(b for b in graph.classes if any(op.name == region.op for op in b.ops))
    targets = [op.target.split(".")[1] for op in block.ops if op.name in region.ops]
    assert targets[0] == targets[-1] == "matmul"
    assert {"tanh", "softmax", "masked_fill"} & set(targets) >= {"tanh", "softmax"}
