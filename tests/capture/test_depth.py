"""A deep stack traced from a few layers gives the graph of the whole trace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autoplan.capture import capture, load_model, model_from_record
from autoplan.ir.record import graph_from_record, graph_to_record


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "nanogpt"])
def test_reduced_equals_full(name):
    source = load_model(name).reduced(layers=6, tp=1)
    short = capture(source, seq_len=16, dtype="bfloat16")
    full = capture(source, seq_len=16, dtype="bfloat16", reduce_depth=False)
    assert short._stacks and not full._stacks
    assert short.at(5) == full.at(5)
    assert len(short.at(5).instances) == 8
    assert len(short.at(5).classes) == 3


@pytest.mark.parametrize("body", ["x = layer(x) / len(self.layers)", "x = layer(x) * (i + 1)"])
def test_depth_dependent_model_is_traced_whole(tmp_path, body):
    """Scaling by depth or position shows in the graph, so no layer may be left out."""
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(7))\n"
        "    def forward(self, x):\n"
        "        for i, layer in enumerate(self.layers):\n"
        f"            {body}\n"
        "        return x.mean()\n"
        "def model(): return Model()\n"
        "def batch(batch_size, seq_len): return {'x': torch.randn(batch_size, 8)}\n"
    )
    captured = capture(load_model(f"{file}:model"), seq_len=0, dtype="float32")
    full = capture(load_model(f"{file}:model"), seq_len=0, dtype="float32", reduce_depth=False)
    assert captured.at(3) == full.at(3)


def test_record_round_trip():
    captured = capture(load_model("nanogpt", overrides={"n_layer": 2}), seq_len=8, dtype="float32")
    graph = captured.at(3)
    assert graph_from_record(graph_to_record(graph)) == graph
    record = captured.record()
    again = capture(model_from_record(record), seq_len=8, dtype="float32").record()
    assert again == record
    assert record.num_parameters == sum(p.numel for p in graph.parameters)


def test_digest_does_not_depend_on_hash_seed():
    source = load_model("nanogpt").reduced(layers=2, tp=1)
    here = capture(source, seq_len=8, dtype="float32").record().digest
    code = (
        "from autoplan.capture import *;"
        "s=load_model('nanogpt').reduced(layers=2,tp=1);"
        "print(capture(s,seq_len=8,dtype='float32').record().digest)"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == here


def test_tensor_that_skips_over_blocks(tmp_path, run_graph):
    """What each decoder layer reads from the encoder is handed on through every block."""
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "class Layer(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.Linear(8, 8)\n"
        "    def forward(self, x, memory): return x + self.a(x) * memory\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.encoder = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))\n"
        "        self.decoder = nn.ModuleList(Layer() for _ in range(6))\n"
        "    def forward(self, x):\n"
        "        for layer in self.encoder: x = layer(x)\n"
        "        y = x * 2\n"
        "        for layer in self.decoder: y = layer(y, x)\n"
        "        return y.square().mean()\n"
        "def model(): return Model()\n"
        "def batch(batch_size, seq_len): return {'x': torch.randn(batch_size, 8)}\n"
    )
    source = load_model(f"{file}:model")
    graph = capture(source, seq_len=0, dtype="float32").at(4)
    layers = [graph.block_class(i) for i in graph.instances if i.name.startswith("decoder.")]
    assert len(layers) == 6
    assert all(len(layer.inputs) == 2 for layer in layers)
    module, batch = source.build(), source.batch(4, 0)
    assert run_graph(graph, module, batch).item() == pytest.approx(module(**batch).item())
