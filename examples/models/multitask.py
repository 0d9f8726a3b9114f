"""One trunk, three heads, three losses: classes, a number, and the picture itself.

``autoplan solve multitask.py:model --cluster 8xh100 --global-batch 256``
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Norm, two projections around a GELU, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Residual stream after this layer."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class MultiTask(nn.Module):
    """Each head has layers of its own behind the shared trunk."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.trunk = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.classify = nn.Sequential(Layer(width), nn.Linear(width, classes))
        self.measure = nn.Sequential(Layer(width), Layer(width), nn.Linear(width, 1))
        self.rebuild = nn.Sequential(Layer(width), nn.Linear(width, features))

    def forward(self, x: Tensor, label: Tensor, number: Tensor) -> Tensor:
        """Weighted sum of the three losses."""
        h = self.trunk(self.first(x))
        classes = F.cross_entropy(self.classify(h), label)
        numbers = F.smooth_l1_loss(self.measure(h).squeeze(1), number)
        return classes + 0.5 * numbers + 0.1 * F.mse_loss(self.rebuild(h), x)


def model(
    features: int = 4096, width: int = 4096, depth: int = 12, classes: int = 1000
) -> MultiTask:
    """2.3 billion parameters."""
    return MultiTask(features, width, depth, classes)


def batch(
    batch_size: int, seq_len: int, features: int = 4096, classes: int = 1000
) -> dict[str, Tensor]:
    """Random features, labels and numbers."""
    return {
        "x": torch.randn(batch_size, features),
        "label": torch.randint(0, classes, (batch_size,)),
        "number": torch.randn(batch_size),
    }
