"""A captured graph computes the model's own loss and gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import autoplan.capture
from autoplan.capture import capture, disable_dropout, load_model

SEQ_LEN = 16


@pytest.mark.parametrize("name", ["gpt2", "nanogpt"])
def test_graph_equals_model(name, run_graph):
    source = load_model(name).reduced(layers=2, tp=2)
    assert source is not None
    captured = capture(source, seq_len=SEQ_LEN, dtype="float32", dropout=False)
    torch.manual_seed(0)
    module = disable_dropout(source.build())
    for size in (1, 4):
        graph = captured.at(size)
        batch = source.batch(size, SEQ_LEN, seed=size)
        expected = module(**batch)
        want = torch.autograd.grad(expected, list(module.parameters()), allow_unused=True)
        loss = run_graph(graph, module, batch)
        got = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_example_file_and_config_directory(tmp_path, run_graph):
    """A model is the same whichever way it is named."""
    folder = Path(autoplan.capture.__file__).parent / "architectures"
    (tmp_path / "config.json").write_text((folder / "gpt2.json").read_text())
    small = {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 128}
    named, by_path = (
        capture(load_model(spec, overrides=small), seq_len=8, dtype="float32").at(2)
        for spec in ("gpt2", str(tmp_path))
    )
    assert replace(by_path, name="gpt2") == named
    example = Path(__file__).parents[2] / "examples/models/token_mlp.py"
    source = load_model(f"{example}:model", overrides={"width": 32, "vocab_size": 64})
    graph = capture(source, seq_len=8, dtype="float32").at(5)
    module, batch = source.build(), source.batch(5, 8)
    assert_close(run_graph(graph, module, batch), module(**batch))
    (tied,) = (p for p in graph.parameters if p.aliases)
    assert (tied.fqn, tied.aliases) == ("embed.weight", ("head.weight",))
    assert [i.name for i in graph.instances][1:-1] == [f"layers.{i}" for i in range(6)]
    assert source.reduced(layers=1, tp=1) is None


def test_constants_and_no_grad_regions(tmp_path, run_graph):
    """Tensors made from Python numbers keep their values; ``no_grad`` results carry none."""
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = nn.Parameter(torch.randn(4, 4))\n"
        "        self.register_buffer('scale', torch.arange(4.0))\n"
        "    def forward(self, x):\n"
        "        y = x @ self.w * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)\n"
        "        with torch.no_grad():\n"
        "            norm = y.abs().amax()\n"
        "        y = y + torch.tensor([0, 1, 0, 1])\n"
        "        return (y / norm + self.scale * y.detach()).square().mean()\n"
        "def model(): return Model()\n"
        "def batch(batch_size, seq_len): return (torch.randn(batch_size, 4),)\n"
    )
    source = load_model(f"{file}:model")
    graph = capture(source, seq_len=0, dtype="float32").at(5)
    module, batch = source.build(), source.batch(5, 0)
    expected, loss = module(**batch), run_graph(graph, module, batch)
    assert_close(loss, expected)
    want, got = (torch.autograd.grad(value, module.w) for value in (expected, loss))
    assert_close(got, want)
