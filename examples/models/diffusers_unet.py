"""Training step of a latent diffusion U-Net with text conditioning, from diffusers.

Noise and time steps are inputs: a plan's program then has no random numbers of its own.

``autoplan solve diffusers_unet.py:model --cluster 8xh100 --global-batch 64``
"""

from __future__ import annotations

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from torch.nn import functional as F


class NoisePrediction(nn.Module):
    """Mean squared error between the noise added and the noise predicted."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, latents: Tensor, noise: Tensor, strength: Tensor, timestep: Tensor, text: Tensor
    ) -> Tensor:
        """Mean squared error; ``strength`` is the share of noise of each sample."""
        share = strength[:, None, None, None]
        noisy = latents * (1 - share).sqrt() + noise * share.sqrt()
        return F.mse_loss(self.net(noisy, timestep, text).sample, noise)


def model(
    channels: int = 320, depth: int = 2, cross_width: int = 768, heads: int = 8
) -> NoisePrediction:
    """Stable Diffusion 1.5's sizes."""
    net = UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(channels, 2 * channels, 4 * channels, 4 * channels),
        layers_per_block=depth,
        cross_attention_dim=cross_width,
        attention_head_dim=heads,
    )
    return NoisePrediction(net)


def batch(
    batch_size: int, seq_len: int, size: int = 64, cross_width: int = 768, words: int = 77
) -> dict[str, Tensor]:
    """Random latents, noise, and text states."""
    return {
        "latents": torch.randn(batch_size, 4, size, size),
        "noise": torch.randn(batch_size, 4, size, size),
        "strength": torch.rand(batch_size),
        "timestep": torch.randint(0, 1000, (batch_size,)),
        "text": torch.randn(batch_size, words, cross_width),
    }
