"""A diffusion transformer in plain PyTorch: patches, and norms scaled by time and class.

``autoplan solve dit.py:model --cluster 8xh100 --global-batch 256``
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 1000
PATCH = 2


class Layer(nn.Module):
    """Attention and MLP; the condition scales, shifts and gates both."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.condition = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        """Residual stream after this layer."""
        size, length, width = x.shape
        parts = self.condition(F.silu(given))[:, None].chunk(6, 2)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        q, k, v = (
            part.reshape(size, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x) * (1 + scale1) + shift1).chunk(3, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(size, length, width)
        x = x + gate1 * self.out(y)
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class Dit(nn.Module):
    """Predicts the noise in a latent image from time step and class."""

    def __init__(self, width: int, heads: int, depth: int, size: int, channels: int) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Conv2d(channels, width, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.randn(1, (size // PATCH) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(CLASSES, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, PATCH * PATCH * channels)

    def forward(
        self, latents: Tensor, noise: Tensor, strength: Tensor, timestep: Tensor, labels: Tensor
    ) -> Tensor:
        """Mean squared error of the noise; ``strength`` is the share of noise of each sample."""
        share = strength[:, None, None, None]
        noisy = latents * (1 - share).sqrt() + noise * share.sqrt()
        x = self.patches(noisy).flatten(2).transpose(1, 2) + self.positions
        given = self.time(self._waves(timestep).to(x.dtype)) + self.classes(labels)
        for layer in self.layers:
            x = layer(x, given)
        target = F.pixel_unshuffle(noise, PATCH).flatten(2).transpose(1, 2)
        return F.mse_loss(self.head(self.norm(x)), target)

    def _waves(self, timestep: Tensor) -> Tensor:
        steps = torch.arange(128, device=timestep.device) / 128
        angles = timestep[:, None] * torch.exp(-math.log(10000.0) * steps)
        return torch.cat([angles.cos(), angles.sin()], 1)


def model(
    width: int = 1152, heads: int = 16, depth: int = 28, size: int = 32, channels: int = 4
) -> Dit:
    """DiT-XL/2's sizes."""
    return Dit(width, heads, depth, size, channels)


def batch(batch_size: int, seq_len: int, size: int = 32, channels: int = 4) -> dict[str, Tensor]:
    """Random latents, noise and labels."""
    return {
        "latents": torch.randn(batch_size, channels, size, size),
        "noise": torch.randn(batch_size, channels, size, size),
        "strength": torch.rand(batch_size),
        "timestep": torch.randint(0, 1000, (batch_size,)),
        "labels": torch.randint(0, CLASSES, (batch_size,)),
    }
