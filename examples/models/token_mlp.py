"""A residual MLP over tokens with a tied embedding, in plain PyTorch.

Its factory is named on the command line: ``autoplan solve token_mlp.py:model``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Norm, two projections around a ReLU, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Residual stream after this layer."""
        return x + self.down(F.relu(self.up(self.norm(x))))


class TokenMlp(nn.Module):
    """Predicts each token from itself: a smoke test, not a language model."""

    def __init__(self, width: int, depth: int, vocab_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def model(width: int = 256, depth: int = 6, vocab_size: int = 1024) -> TokenMlp:
    """Model whose forward returns the loss."""
    return TokenMlp(width, depth, vocab_size)


def batch(batch_size: int, seq_len: int, vocab_size: int = 1024) -> dict[str, Tensor]:
    """Random tokens, each its own target."""
    ids = torch.randint(0, vocab_size, (batch_size, seq_len))
    return {"ids": ids, "targets": ids.clone()}
