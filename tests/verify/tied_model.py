"""A user's file: tied weights, buffers (one drawn by chance), a frozen table, scalars, dropout."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.drop = nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("decay", torch.linspace(0.5, 1.0, width))
        self.register_buffer("mixing", torch.rand(width))

    def forward(self, x):
        value, gate = self.mix(self.norm(x)).chunk(2, dim=-1)
        mixed = value * torch.sigmoid(gate) * self.decay
        mixed = mixed * self.mixing
        return x + self.scale * self.drop(self.out(mixed.cumsum(1) / x.shape[1]))


class Model(nn.Module):
    def __init__(self, width: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.1, requires_grad=False)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, targets):
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(width: int = 32, layers: int = 2, words: int = 48, length: int = 64) -> nn.Module:
    return Model(width, layers, words, length)


def batch(batch_size: int, seq_len: int, words: int = 48):
    ids = torch.randint(0, words, (batch_size, seq_len + 1))
    return {"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
