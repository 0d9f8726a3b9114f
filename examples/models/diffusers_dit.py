"""Training step of a diffusion transformer (DiT) from diffusers.

``autoplan solve diffusers_dit.py:model --cluster 8xh100 --global-batch 256``
"""

from __future__ import annotations

import torch
from diffusers import DiTTransformer2DModel
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 1000


class NoisePrediction(nn.Module):
    """Mean squared error between the noise added and the noise predicted."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, latents: Tensor, noise: Tensor, strength: Tensor, timestep: Tensor, labels: Tensor
    ) -> Tensor:
        """Mean squared error; ``strength`` is the share of noise of each sample."""
        share = strength[:, None, None, None]
        noisy = latents * (1 - share).sqrt() + noise * share.sqrt()
        out = self.net(noisy, timestep, labels, return_dict=False)[0]
        return F.mse_loss(out, noise)


def model(
    heads: int = 16, head_width: int = 72, depth: int = 28, size: int = 32
) -> NoisePrediction:
    """DiT-XL/2 without the learned variance."""
    net = DiTTransformer2DModel(
        num_attention_heads=heads,
        attention_head_dim=head_width,
        in_channels=4,
        out_channels=4,
        num_layers=depth,
        sample_size=size,
        patch_size=2,
        num_embeds_ada_norm=CLASSES,
    )
    return NoisePrediction(net)


def batch(batch_size: int, seq_len: int, size: int = 32) -> dict[str, Tensor]:
    """Random latents, noise and labels."""
    return {
        "latents": torch.randn(batch_size, 4, size, size),
        "noise": torch.randn(batch_size, 4, size, size),
        "strength": torch.rand(batch_size),
        "timestep": torch.randint(0, 1000, (batch_size,)),
        "labels": torch.randint(0, CLASSES, (batch_size,)),
    }
