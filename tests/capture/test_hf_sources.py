"""Configurations, heads and reduced settings of Hugging Face models, and what they refuse."""

from __future__ import annotations

import json

import pytest
import torch

from autoplan.capture import load_model
from autoplan.errors import AutoplanError, InputError, UsageError

TASK_OF = {
    "gpt2": "causal_lm",
    "bert-base": "masked_lm",
    "t5-large": "seq2seq_lm",
    "bart-large": "seq2seq_lm",
    "whisper-large-v3": "speech_seq2seq",
    "clip-large": "contrastive",
    "siglip-so400m": "contrastive",
    "vit-large": "image_classification",
    "swin-large": "image_classification",
    "llava-1.5-7b": "image_text_to_text",
    "gemma3-4b": "image_text_to_text",
    "mamba2-2.7b": "causal_lm",
}


def _config(tmp_path, **values):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    return str(file)


@pytest.mark.parametrize("name", TASK_OF)
def test_head(name):
    assert load_model(name).task == TASK_OF[name]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        # Without architectures the head is the first that fits the model type.
        ({"model_type": "t5"}, "seq2seq_lm"),
        ({"model_type": "bart"}, "seq2seq_lm"),
        ({"model_type": "roberta"}, "masked_lm"),
        ({"model_type": "clip"}, "contrastive"),
        ({"model_type": "roberta", "architectures": ["RobertaForCausalLM"]}, "causal_lm"),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
            "sequence_classification",
        ),
        ({"model_type": "bart", "architectures": ["BartForCausalLM"]}, "causal_lm"),
    ],
)
def test_head_of_a_configuration(tmp_path, values, task):
    assert load_model(_config(tmp_path, **values)).task == task


@pytest.mark.parametrize(
    ("name", "seq_len", "expected"),
    [
        ("roberta-large", 513, "513 exceeds the 512 positions"),
        ("clip-large", 78, "78 exceeds the 77 positions"),
        ("whisper-large-v3", 449, "449 exceeds the 448 positions"),
        ("bart-large", 1025, "1025 exceeds the 1024 positions"),
        ("llava-1.5-7b", 500, "no room for the 576 tokens of an image"),
    ],
)
def test_lengths_that_do_not_fit(name, seq_len, expected):
    source = load_model(name)
    with pytest.raises(UsageError, match=expected):
        source.batch(1, seq_len, device="meta")
    longest = source.longest_sequence()
    assert longest is not None
    assert source.batch(1, longest)


def test_scan_in_a_loop_is_refused_when_long():
    source = load_model("mamba-2.8b")
    assert source.batch(2, 128, device="meta")["input_ids"].shape == (2, 128)
    with pytest.raises(UsageError, match="Python loop over tokens") as raised:
        source.batch(2, 129, device="meta")
    assert "mamba2" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("llava-1.5-7b", {"num_hidden_layers": 2}, "text_config.num_hidden_layers"),
        ("llava-1.5-7b", {"text_confg.hidden_size": 64}, "did you mean text_config"),
        ("llava-1.5-7b", {"text_config.hidden_sise": 64}, "did you mean hidden_size"),
        ("llava-1.5-7b", {"text_config.hidden_size": 0}, "at least 1"),
        ("gpt2", {"text_config.n_layer": 2}, "takes no parts"),
        ("gpt2", {"n_layers": 2}, "did you mean n_layer"),
    ],
)
def test_overrides_that_name_nothing(name, overrides, expected):
    with pytest.raises(UsageError) as raised:
        load_model(name, overrides=overrides)
    assert expected in f"{raised.value} {raised.value.hint}"


def test_nested_override_changes_only_its_part():
    before = load_model("llava-1.5-7b")
    after = load_model("llava-1.5-7b", overrides={"text_config.num_hidden_layers": 3})
    assert after._config.text_config.num_hidden_layers == 3
    assert after._config.vision_config.num_hidden_layers == 24
    assert before._config.text_config.num_hidden_layers == 32
    assert after.config["text_config"]["vocab_size"] == 32064


def test_override_by_another_name_of_the_key():
    source = load_model("gpt2", overrides={"num_hidden_layers": 3})
    assert source._config.n_layer == 3
    assert source.config["n_layer"] == 3
    assert "num_hidden_layers" not in source.config


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ({"model_type": "clip_text_model"}, UsageError, "no head with a known loss"),
        (
            {"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]},
            UsageError,
            "no head with a known loss",
        ),
        ({"model_type": "t5"}, UsageError, "decoder_start_token_id"),
        ({"model_type": "qwen2_5_vl"}, UsageError, "images among the tokens"),
        ({"model_type": "gpt2", "n_head": 7}, InputError, "can't build|invalid"),
    ],
)
def test_configurations_that_are_refused(tmp_path, values, kind, expected):
    spec = _config(tmp_path, **values)
    with pytest.raises(AutoplanError) as raised:
        source = load_model(spec)
        source.batch(1, 600)
        source.build_for_trace(dtype="float32")
    assert isinstance(raised.value, kind)
    assert raised.value.hint
    assert any(part in str(raised.value) for part in expected.split("|"))


def test_images_stand_where_their_placeholders_are():
    source = load_model("llava-1.5-7b").reduced(layers=1, tp=1)
    batch = source.batch(2, 24)
    placeholder = batch["input_ids"] == source._config.image_token_id
    # A 2 x 2 grid of patches, and no label where an image is.
    assert placeholder.sum(dim=1).tolist() == [4, 4]
    assert torch.equal(batch["labels"] == -100, placeholder)


def test_sequence_classification_ends_in_a_loss(tmp_path):
    spec = _config(
        tmp_path, model_type="bert", architectures=["BertForSequenceClassification"], num_labels=3
    )
    source = load_model(spec).reduced(layers=1, tp=1)
    loss = source.build()(**source.batch(4, 8))
    assert loss.shape == () and torch.isfinite(loss)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_reduced_keeps_the_kind(tp):
    def small(name):
        return load_model(name).reduced(layers=4, tp=tp)._config

    llama, gemma, bert = small("llama3-8b"), small("gemma3-1b"), small("bert-base")
    assert 1 < llama.num_key_value_heads < llama.num_attention_heads
    assert llama.num_key_value_heads % tp == 0
    assert gemma.num_key_value_heads == 1
    assert gemma.layer_types == ["sliding_attention", "full_attention"] * 2
    assert bert.num_attention_heads * 16 == bert.hidden_size
    experts = small("qwen3-30b-a3b")
    assert experts.num_experts_per_tok < experts.num_local_experts
    latent = small("deepseek-v3")
    assert latent.first_k_dense_replace == 1 and latent.num_hidden_layers == 4
    assert latent.q_lora_rank % tp == 0 and latent.kv_lora_rank % tp == 0
    assert latent.n_group * latent.num_experts_per_tok <= 2 * latent.n_routed_experts
    swin = small("swin-large")
    assert len(swin.depths) == 4 and all(heads % tp == 0 for heads in swin.num_heads)
    llava = small("llava-1.5-7b")
    assert llava.text_config.num_hidden_layers == llava.vision_config.num_hidden_layers == 4
    state = small("mamba2-2.7b")
    assert state.num_heads * state.head_dim == state.expand * state.hidden_size


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_that_weights_are_stored_in_is_not_that_of_the_plan(tmp_path, key):
    source = load_model(
        _config(
            tmp_path, model_type="llama", hidden_size=32, intermediate_size=32, vocab_size=64,
            num_hidden_layers=1, num_attention_heads=2, architectures=["LlamaForCausalLM"],
            **{key: "bfloat16"},
        )
    )  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        assert {p.dtype for p in source.build(dtype=dtype).parameters()} == {dtype}
        built = source.build_for_trace(dtype=dtype).module
        assert {p.dtype for p in built.parameters()} == {dtype}
