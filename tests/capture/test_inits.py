"""How a model initialises its parameters is kept, also through copies and scaling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autoplan.capture.build import build_on_meta
from autoplan.ir.graph import Init


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 4) * 0.5 + 1)
        self.b = nn.Parameter(torch.ones(4) * 1e-6)
        self.c = nn.Parameter(torch.zeros(4).uniform_(-1, 1).clone())
        self.d = nn.Parameter(torch.randn(4, 4) * torch.rand(4))


def test_scaled_and_copied_values():
    built = build_on_meta(Scaled, dtype=torch.float32)
    assert built.inits["a"] == Init(kind="normal", a=1.0, b=0.5)
    assert built.inits["b"].kind == "constant" and built.inits["b"].a == pytest.approx(1e-6)
    assert built.inits["c"] == Init(kind="uniform", a=-1.0, b=1.0)
    assert built.notes == ("initialisation of 1 parameters guessed: d",)


def test_copied_layers():
    """nn.Transformer copies its first layer: no initialisation has to be guessed."""
    built = build_on_meta(
        lambda: nn.Transformer(8, 2, 2, 2, 16, batch_first=True), dtype=torch.float32
    )
    assert built.notes == ()
    assert built.inits["encoder.layers.1.norm1.weight"] == Init(kind="constant", a=1.0)
    torch.manual_seed(0)
    real = nn.Transformer(64, 2, 2, 2, 64, batch_first=True)
    built = build_on_meta(
        lambda: nn.Transformer(64, 2, 2, 2, 64, batch_first=True), dtype=torch.float32
    )
    for fqn, parameter in real.named_parameters():
        init = built.inits[fqn]
        if init.kind == "uniform":
            assert parameter.max().item() == pytest.approx(init.b, rel=0.1), fqn
        else:
            assert init.kind == "constant" and (parameter == init.a).all(), fqn
