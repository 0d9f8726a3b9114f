"""A recommendation model: big embedding tables, bags of ids, pairwise interactions.

``autoplan solve dlrm.py:model --cluster 8xh100 --global-batch 8192``
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DENSE = 13


def mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers with a ReLU after each."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """Dense features through an MLP, ids through tables, all pairs of the results multiplied."""

    def __init__(self, tables: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = mlp([DENSE, hidden, hidden // 2, width])
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("rows", pairs[0], persistent=False)
        self.register_buffer("columns", pairs[1], persistent=False)
        self.top = mlp([pairs.shape[1] + width, hidden, hidden, hidden // 2])
        self.last = nn.Linear(hidden // 2, 1)

    def forward(self, dense: Tensor, ids: Tensor, clicked: Tensor) -> Tensor:
        """Mean binary cross entropy of the click."""
        x = self.bottom(dense)
        bags = [table(ids[:, index]) for index, table in enumerate(self.tables)]
        features = torch.stack([x, *bags], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        pairs = products[:, self.rows, self.columns]
        score = self.last(self.top(torch.cat([x, pairs], 1))).squeeze(1)
        return F.binary_cross_entropy_with_logits(score, clicked)


def model(tables: int = 26, rows: int = 4_000_000, width: int = 128, hidden: int = 1024) -> Dlrm:
    """13 billion parameters, nearly all of them in the tables."""
    return Dlrm(tables, rows, width, hidden)


def batch(
    batch_size: int, seq_len: int, tables: int = 26, rows: int = 4_000_000, bag: int = 8
) -> dict[str, Tensor]:
    """Random features, ``bag`` ids of each table, and clicks."""
    return {
        "dense": torch.randn(batch_size, DENSE),
        "ids": torch.randint(0, rows, (batch_size, tables, bag)),
        "clicked": torch.randint(0, 2, (batch_size,)).float(),
    }
