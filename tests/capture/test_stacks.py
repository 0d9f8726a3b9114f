"""Patterned stacks from a few of their layers; blocks where no list names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from autoplan.capture import capture, load_model
from autoplan.capture.depth import Run, find_runs
from autoplan.ir.cuts import cut_candidates

MODELS = Path(__file__).with_name("stack_models.py")
IMAGES = 64


def source(factory, **settings):
    return load_model(f"{MODELS}:{factory}", overrides=settings)


def classes(graph, prefix=""):
    return [i.block_class for i in graph.instances if i.name.startswith(prefix)]


# Model, its settings, and the lengths of the stacks that are shortened.
PATTERNS = [
    ("stacks", {"pattern": "aaaaaaaa"}, [8]),
    ("stacks", {"pattern": "aaagggggg"}, [9]),
    ("stacks", {"pattern": "agagagagag"}, [10]),
    ("stacks", {"pattern": "aagaagaagaaga"}, [13]),
    ("stacks", {"pattern": "aaaaaaaa", "walk": "norms"}, [8]),
    ("stacks", {"pattern": "abababab", "walk": "scales"}, [8]),
    ("encoder_decoder", {}, [7, 6]),
    ("first_differs", {}, [8]),
    ("stages", {}, [12, 7]),
    # What depends on the number of layers or on one place is seen, and traced whole.
    ("stacks", {"pattern": "aaaaaaaa", "walk": "count"}, []),
    ("stacks", {"pattern": "aaaaaaaa", "walk": "one"}, []),
    ("stacks", {"pattern": "aaaaaaaaa", "walk": "place"}, []),
    ("stacks", {"pattern": "abcaacab", "walk": "scales"}, [8]),
    ("routed", {"what": "masks", "at": 1}, [24]),
    # So is which tensor a layer gets, be they of one shape.
    ("routed", {"what": "masks"}, []),
    ("routed", {"what": "buffers"}, []),
    ("routed", {"what": "swap", "at": 12}, []),
    ("routed", {"what": "early", "at": 12}, []),
    ("routed", {"what": "first"}, []),
    ("hooked", {}, []),
    ("supervised", {}, [8]),
]


@pytest.mark.parametrize(("factory", "settings", "lengths"), PATTERNS)
def test_reduced_equals_full(factory, settings, lengths):
    model = source(factory, **settings)
    short = capture(model, seq_len=0, dtype="float32")
    full = capture(model, seq_len=0, dtype="float32", reduce_depth=False)
    assert [stack.length for stack in short._stacks] == lengths
    assert not full._stacks
    assert short.at(5) == full.at(5)


@pytest.mark.parametrize("kind", ["branch", "half", "square"])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_sizes_that_two_do_not_foretell_are_traced(kind, size, run_graph):
    model = source("by_size", kind=kind)
    found = capture(model, seq_len=0, dtype="float32")
    found.confirm()
    while not found.confirm(size):
        pass
    module, batch = model.build(), model.batch(size, 0)
    assert_close(run_graph(found.at(size), module, batch), module(**batch))


def test_one_trace_serves_all_sizes_of_usual_models():
    found = capture(source("stacks", pattern="aaaaaaaa"), seq_len=0, dtype="float32")
    assert all(found.confirm(size) for size in (1, 2, 5, 8))


def test_classes_of_patterns():
    graph = capture(source("stacks", pattern="aaagggggg"), seq_len=0, dtype="float32").at(2)
    dense, gated = classes(graph, "layers.")[2:4]
    assert classes(graph, "layers.") == [dense] * 3 + [gated] * 6
    assert dense != gated
    graph = capture(source("encoder_decoder"), seq_len=0, dtype="float32").at(2)
    assert len(set(classes(graph, "encoder."))) == 1
    # The last decoder layer hands the memory on to none: an output of its class ends there.
    assert len(set(classes(graph, "decoder."))) == 1
    assert [i.unused for i in graph.instances if i.name.startswith("decoder.")] == [
        *[()] * 5, (0,)
    ]  # fmt: skip


HF = {
    "moe": {
        "model_type": "qwen3_moe", "num_hidden_layers": 8, "decoder_sparse_step": 2,
        "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
    },
    "sliding": {
        "model_type": "gemma2", "num_hidden_layers": 8, "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 128, "sliding_window": 8,
    },
    "t5": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "num_layers": 6,
        "num_decoder_layers": 5, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4,
        "vocab_size": 128, "decoder_start_token_id": 0, "pad_token_id": 0,
    },
    "swin": {
        "model_type": "swin", "architectures": ["SwinForImageClassification"],
        "depths": [2, 8, 2], "embed_dim": 16, "num_heads": [1, 2, 4], "window_size": 2,
        "image_size": 32, "num_labels": 16, "drop_path_rate": 0.1,
    },
    "resnet": {
        "model_type": "resnet", "architectures": ["ResNetForImageClassification"],
        "depths": [2, 7], "hidden_sizes": [16, 32], "embedding_size": 8, "num_labels": 16,
        "image_size": 32,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HF)
def test_reduced_equals_full_for_public_models(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HF[name]))
    model = load_model(str(tmp_path))
    short = capture(model, seq_len=16, dtype="bfloat16")
    full = capture(model, seq_len=16, dtype="bfloat16", reduce_depth=False)
    assert short._stacks
    assert short.at(5) == full.at(5)


@pytest.mark.parametrize(
    ("factory", "settings", "names"),
    [
        ("attributes", {}, [f"layer{i}" for i in range(1, 7)]),
        ("loop", {}, [f"block_{i}" for i in range(1, 11)]),
        ("loop", {"kinds": 2}, [f"block_{i}" for i in range(1, 6)]),
    ],
)
def test_blocks_without_module_lists(factory, settings, names, run_graph):
    model = source(factory, **settings)
    graph = capture(model, seq_len=0, dtype="float32").at(4)
    assert [i.name for i in graph.instances] == ["embedding", *names, "head"]
    assert len(graph.classes) == 3
    module, batch = model.build(), model.batch(4, 0)
    expected, loss = module(**batch), run_graph(graph, module, batch)
    assert_close(loss, expected)
    parameters = list(module.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_unet_blocks_and_cuts(run_graph):
    """Down and up units are blocks; each cut counts the skips that cross it."""
    model = source("unet")
    graph = capture(model, seq_len=IMAGES, dtype="float32").at(4)
    names = [i.name for i in graph.instances]
    assert {f"{part}.{i}" for part in ("down", "low", "low_up", "up") for i in range(3)} <= {*names}
    cuts = cut_candidates(graph)
    assert [cut.position for cut in cuts] == list(range(1, len(names)))
    widest = max(len(cut.tensors) for cut in cuts)
    assert widest == 6
    before_low = next(cut for cut in cuts if cut.after == "low.0")
    large, small = 4 * 4 * 8 * 8 * 4, 4 * 8 * 4 * 4 * 4
    assert before_low.size == 3 * large + small
    module, batch = model.build(), model.batch(4, IMAGES)
    assert_close(run_graph(graph, module, batch), module(**batch))


def test_runs_leave_few_items():
    assert find_runs([0] * 9, keep=2) == (Run(0, 1, 9),)
    assert find_runs([0, 1] * 4, keep=2) == (Run(0, 2, 4),)
    (alternating, *_) = find_runs([0, 0, 0, 0, 0, 1] * 5 + [0, 0], keep=2)
    assert alternating == Run(0, 6, 5)
    assert [run.repeats for run in find_runs([0, 1, 2, 3], keep=2)] == [1, 1, 1, 1]
    assert Run(3, 1, 58).kept(3) == (0, 28, 57)
