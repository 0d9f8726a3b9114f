"""Every built-in Hugging Face family: its reduced form captured, and equal to the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from autoplan.capture import capture, disable_dropout, list_models, load_model
from autoplan.capture.hf import HuggingFaceSource
from autoplan.capture.hf.config import transformers_library
from autoplan.capture.hf.tasks import TASKS

SEQ_LEN = 24
NAMES = [name for name in list_models() if isinstance(load_model(name), HuggingFaceSource)]


def _families() -> list[object]:
    """Names, of which one a model type runs by default: reduced, its others are much like it."""
    seen: set[object] = set()
    cases = []
    for name in NAMES:
        kind = load_model(name).config["model_type"]
        cases.append(pytest.param(name, marks=pytest.mark.slow if kind in seen else ()))
        seen.add(kind)
    return cases


def _module(source: HuggingFaceSource) -> nn.Module:
    """The module as transformers makes it, on the meta device, without anything of ours."""
    auto = getattr(transformers_library(), TASKS[source.task].auto)
    with torch.device("meta"):
        module: nn.Module = auto.from_config(source._config)
    return module


@pytest.mark.parametrize("name", _families())
def test_reduced_graph_is_the_model(name, run_graph):
    source = load_model(name).reduced(layers=2, tp=2)
    assert source is not None
    captured = capture(source, seq_len=SEQ_LEN, dtype="float32", dropout=False)
    torch.manual_seed(0)
    module = disable_dropout(source.build())
    parameters = [p for p in module.parameters() if p.requires_grad]
    assert captured.num_parameters == sum(p.numel() for p in module.parameters())
    size = 4
    graph, batch = captured.at(size), source.batch(size, SEQ_LEN, seed=1)
    expected = module(**batch)
    loss = run_graph(graph, module, batch)
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    want = torch.autograd.grad(expected, parameters, allow_unused=True)
    got = torch.autograd.grad(loss, parameters, allow_unused=True)
    assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_samples_and_repeat(name):
    source = load_model(name).reduced(layers=1, tp=1)
    assert source is not None
    first, again, other = (source.batch(3, SEQ_LEN, seed=seed) for seed in (5, 5, 6))
    assert all(tensor.shape[0] == 3 for tensor in first.values())
    assert_close(first, again, rtol=0, atol=0)
    assert any(not torch.equal(first[key], other[key]) for key in first)


# As the models' publishers count them.
PUBLISHED = {
    "bert-base": 109_514_298,
    "bloom-176b": 176_247_271_424,
    "clip-large": 427_616_513,
    "convnext-base": 88_591_464,
    "deepseek-v3": 671_026_404_352,
    "gemma2-9b": 9_241_705_984,
    "gemma3-4b": 4_300_079_472,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "llama2-7b": 6_738_415_616,
    "llama3-405b": 405_853_388_800,
    "llama3-8b": 8_030_261_248,
    "llava-1.5-7b": 7_063_427_072,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-2": 2_779_683_840,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-8b": 8_190_735_360,
    "resnet50": 25_557_032,
    "swin-large": 196_532_476,
    "t5-large": 737_668_096,
    "whisper-large-v3": 1_543_490_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_size_has_the_published_parameters(name):
    module = _module(load_model(name))
    assert sum(parameter.numel() for parameter in module.parameters()) == PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5-large", "clip-large", "whisper-large-v3"])
def test_captured_parameters_at_full_size(name):
    source = load_model(name)
    captured = capture(source, seq_len=64, dtype="bfloat16")
    assert captured.num_parameters == sum(p.numel() for p in _module(source).parameters())
