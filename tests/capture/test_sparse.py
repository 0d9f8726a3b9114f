"""Tables with sparse gradients."""

from __future__ import annotations

from pathlib import Path

from autoplan.capture import capture, load_model

_SPARSE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4, sparse=True)
        self.bag = nn.EmbeddingBag(16, 4, sparse=True)

    def forward(self, ids):
        return (self.table(ids) + self.bag(ids)[:, None]).square().mean()


def batch(batch_size, seq_len):
    return {"ids": torch.randint(16, (batch_size, 3))}
"""


def test_sparse_gradients_are_made_dense(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(_SPARSE)
    graph = capture(load_model(f"{path}:Net"), seq_len=0, dtype="float32").at(3)
    ops = [op for b in graph.classes for op in b.ops if "embedding" in op.target]
    assert len(ops) == 2
    assert not any(arg is True for op in ops for arg in op.args)
    assert "sparse gradients made dense: table.weight and others like it" in graph.notes
