"""Models over images and volumes, small: ResNet, ConvNeXt, U-Net in 2-D and 3-D, ViT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, ins: int, width: int, outs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(ins, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outs, 1, bias=False), nn.BatchNorm2d(outs)
        self.shortcut = nn.Identity()
        if stride > 1 or ins != outs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)
            )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.stages = nn.Sequential(
            Bottleneck(width, width, 2 * width, 1), Bottleneck(2 * width, width, 4 * width, 2)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4 * width, 8)

    def forward(self, image, label):
        x = self.pool(self.stages(self.stem(image))).flatten(1)
        return F.cross_entropy(self.head(x), label)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.first = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(2)))
        self.norm = nn.GroupNorm(1, width)
        self.reduce = nn.Conv2d(width, 2 * width, 2, 2)
        self.second = nn.Sequential(*(ConvNeXtBlock(2 * width) for _ in range(2)))
        self.last, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, 8)

    def forward(self, image, label):
        x = self.reduce(self.norm(self.first(self.stem(image))))
        x = self.second(x).mean([-2, -1])
        return F.cross_entropy(self.head(self.last(x)), label)


def _double(conv: type[nn.Module], ins: int, outs: int) -> nn.Sequential:
    layers = []
    for channels in (ins, outs):
        layers += [conv(channels, outs, 3, padding=1), nn.GroupNorm(2, outs), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Depth 2; ``up`` is a transposed convolution or an interpolation and a convolution."""

    def __init__(self, dims: int, ins: int, width: int, up: str) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        pool = nn.MaxPool2d if dims == 2 else nn.MaxPool3d
        back = nn.ConvTranspose2d if dims == 2 else nn.ConvTranspose3d
        self.down1, self.down2 = _double(conv, ins, width), _double(conv, width, 2 * width)
        self.middle = _double(conv, 2 * width, 4 * width)
        self.pool = pool(2)

        def enlarge(channels: int) -> nn.Module:
            if up == "transposed":
                return back(channels, channels // 2, 2, 2)
            mode = "bilinear" if dims == 2 else "trilinear"
            return nn.Sequential(
                nn.Upsample(scale_factor=2, mode=mode), conv(channels, channels // 2, 1)
            )

        self.up2, self.up1 = enlarge(4 * width), enlarge(2 * width)
        self.merge2 = _double(conv, 4 * width, 2 * width)
        self.merge1 = _double(conv, 2 * width, width)
        self.head = conv(width, 1, 1)

    def forward(self, image, target):
        a = self.down1(image)
        b = self.down2(self.pool(a))
        x = self.up2(self.middle(self.pool(b)))
        x = self.up1(self.merge2(torch.cat([x, b], 1)))
        x = self.head(self.merge1(torch.cat([x, a], 1)))
        return F.mse_loss(x, target)


class ViT(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, (size // 4) ** 2, width) * 0.1)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "up": nn.Linear(width, 2 * width),
                    "down": nn.Linear(2 * width, width),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(width, 8)

    def forward(self, image, label):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = x + layer["down"](F.gelu(layer["up"](layer["norm"](x))))
        return F.cross_entropy(self.head(x.mean(1)), label)


def resnet(width: int = 8, size: int = 64) -> nn.Module:
    return ResNet(width)


def convnext(width: int = 8, size: int = 64) -> nn.Module:
    return ConvNeXt(width)


def unet2d(width: int = 4, size: int = 32, up: str = "bilinear") -> nn.Module:
    return UNet(2, 3, width, up)


def unet3d(width: int = 4, size: int = 16, up: str = "transposed") -> nn.Module:
    return UNet(3, 1, width, up)


def vit(width: int = 16, size: int = 32) -> nn.Module:
    return ViT(width, size)


def batch(batch_size: int, seq_len: int, size: int, dims: int = 2, dense: bool = False):
    image = torch.randn(batch_size, 3 if dims == 2 else 1, *(size,) * dims)
    if dense:
        return {"image": image, "target": torch.randn(batch_size, 1, *(size,) * dims)}
    return {"image": image, "label": torch.randint(0, 8, (batch_size,))}
