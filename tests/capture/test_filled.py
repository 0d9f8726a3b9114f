"""An empty tensor filled slice by slice is captured as one cat."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from autoplan.capture import capture, load_model
from autoplan.errors import CaptureError

_FILE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 3)
    def forward(self, x):
        y = x.new_empty(*x.shape[:-1], 7)
        {body}
        return (y * torch.arange(7.0, device=x.device)).square().mean()
def model(): return Model()
def batch(batch_size, seq_len): return (torch.randn(batch_size, 5, 6),)
"""
_FIRST, _SECOND = "y[..., :4].copy_(self.a(x))", "y[..., -3:].copy_(self.b(x))"


def source_of(tmp_path, *lines):
    file = tmp_path / "model.py"
    file.write_text(_FILE.format(body="\n        ".join(lines)))
    return load_model(f"{file}:model")


@pytest.mark.parametrize("lines", [(_FIRST, _SECOND), (_SECOND, _FIRST)])
def test_slices_that_cover_a_tensor_are_its_parts(tmp_path, run_graph, lines):
    source = source_of(tmp_path, *lines)
    graph = capture(source, seq_len=0, dtype="float32").at(3)
    targets = [op.target for block in graph.classes for op in block.ops]
    assert "aten.cat.default" in targets
    assert not any("copy_" in target or "empty" in target for target in targets)
    module, batch = source.build(), source.batch(3, 0)
    expected, loss = module(**batch), run_graph(graph, module, batch)
    assert_close(loss, expected)
    want, got = (torch.autograd.grad(v, list(module.parameters())) for v in (expected, loss))
    assert_close(got, want)


@pytest.mark.parametrize(
    "lines",
    [
        (_FIRST,),
        (_FIRST, "y = y + 1", _SECOND),
        (_FIRST, "z = y[..., 2:].sum() * 0", _SECOND, "y = y + z"),
    ],
)
def test_a_tensor_that_is_empty_in_part_is_not_read(tmp_path, lines):
    with pytest.raises(CaptureError, match="is empty in part"):
        capture(source_of(tmp_path, *lines), seq_len=0, dtype="float32")


def test_slices_along_two_dims_are_refused(tmp_path):
    source = source_of(tmp_path, _FIRST, "y[:, :2].copy_(torch.cat((self.a(x), self.b(x)), -1))")
    with pytest.raises(CaptureError):
        capture(source, seq_len=0, dtype="float32")
