"""Segmentation U-Net in two or three dimensions, in plain PyTorch.

``autoplan solve unet.py:model --set dims=3 --set size=96``
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
UP = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
BATCH_NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORM = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def norm_layer(kind: str, dims: int, channels: int) -> nn.Module:
    """Norm named ``group``, ``batch`` or ``instance``."""
    match kind:
        case "group":
            return nn.GroupNorm(8, channels)
        case "batch":
            return BATCH_NORM[dims](channels)
        case "instance":
            return INSTANCE_NORM[dims](channels, affine=True)
    raise ValueError(f"norm is group, batch or instance, not {kind!r}")


class Double(nn.Sequential):
    """Two convolutions of width 3, each with norm and ReLU."""

    def __init__(self, dims: int, before: int, after: int, norm: str) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [
                CONV[dims](channels, after, 3, padding=1, bias=False),
                norm_layer(norm, dims, after),
                nn.ReLU(),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """Encoder and decoder with a skip connection at each resolution."""

    def __init__(
        self, dims: int, channels: int, depth: int, colours: int, classes: int, norm: str
    ) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(depth + 1)]
        self.stem = Double(dims, colours, channels, norm)
        self.pool = POOL[dims](2)
        self.down = nn.ModuleList(
            Double(dims, narrow, wide, norm) for narrow, wide in itertools.pairwise(widths)
        )
        pairs = list(zip(reversed(widths), reversed(widths[:-1]), strict=False))
        self.up = nn.ModuleList(UP[dims](wide, narrow, 2, stride=2) for wide, narrow in pairs)
        self.join = nn.ModuleList(Double(dims, 2 * narrow, narrow, norm) for _, narrow in pairs)
        self.head = CONV[dims](channels, classes, 1)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy over all pixels."""
        x = self.stem(image)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(self.pool(x))
        for up, join, skip in zip(self.up, self.join, reversed(skips), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return F.cross_entropy(self.head(x), labels)


def model(
    dims: int = 2,
    channels: int = 64,
    depth: int = 4,
    colours: int = 3,
    classes: int = 21,
    norm: str = "group",
) -> UNet:
    """The classic widths: 64 channels doubled four times."""
    return UNet(dims, channels, depth, colours, classes, norm)


def batch(
    batch_size: int, seq_len: int, dims: int = 2, size: int = 512, colours: int = 3,
    classes: int = 21,
) -> dict[str, Tensor]:  # fmt: skip
    """Random images and a class for each pixel."""
    space = (size,) * dims
    return {
        "image": torch.randn(batch_size, colours, *space),
        "labels": torch.randint(0, classes, (batch_size, *space)),
    }
