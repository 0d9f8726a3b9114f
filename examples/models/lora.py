"""A frozen decoder with trainable low-rank updates (LoRA) of its projections, in plain PyTorch.

``autoplan solve lora.py:model --cluster 8xh100 --global-batch 64 --seq-len 2048``
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoraLinear(nn.Module):
    """``x W' + scale * x A' B'``: W frozen, A and B trained, B zero at the start."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Projection with its update."""
        return self.base(x) + 2.0 * self.up(self.down(x))


class Layer(nn.Module):
    """Causal attention and gated MLP with RMS norms."""

    def __init__(self, width: int, heads: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (
            LoraLinear(width, width, rank) for _ in range(4)
        )
        self.gate, self.up = (LoraLinear(width, hidden, rank) for _ in range(2))
        self.down = LoraLinear(hidden, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Residual stream after this layer."""
        size, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (
            layer(y).view(size, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(size, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """All that is no low-rank update is frozen."""

    def __init__(
        self, width: int, heads: int, hidden: int, depth: int, vocab_size: int, rank: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(Layer(width, heads, hidden, rank) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            trained = name.startswith("layers.") and name.split(".")[3] in {"down", "up"}
            parameter.requires_grad_(trained)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the next token."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def model(
    width: int = 4096,
    heads: int = 32,
    hidden: int = 11008,
    depth: int = 32,
    vocab_size: int = 32000,
    rank: int = 16,
) -> Decoder:
    """6.7 billion frozen parameters, 40 million trained ones."""
    return Decoder(width, heads, hidden, depth, vocab_size, rank)


def batch(batch_size: int, seq_len: int, vocab_size: int = 32000) -> dict[str, Tensor]:
    """Random tokens."""
    ids = torch.randint(0, vocab_size, (batch_size, seq_len + 1))
    return {"ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone()}
