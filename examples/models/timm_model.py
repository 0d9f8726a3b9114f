"""Any classifier of timm, by name.

``autoplan solve timm_model.py:model --set name=efficientnet_b0 --cluster 8xh100``
"""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """A network and the cross entropy of its classes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy."""
        return F.cross_entropy(self.net(image), labels)


def model(
    name: str = "vit_base_patch16_224",
    num_classes: int = 1000,
    img_size: int | None = None,
    depth: int | None = None,
    embed_dim: int | None = None,
    num_heads: int | None = None,
) -> Classifier:
    """Network of that name with random weights; sizes that are given replace its own."""
    sizes = {"img_size": img_size, "depth": depth, "embed_dim": embed_dim,
             "num_heads": num_heads}  # fmt: skip
    given = {key: value for key, value in sizes.items() if value is not None}
    return Classifier(timm.create_model(name, num_classes=num_classes, **given))


def batch(
    batch_size: int, seq_len: int, image_size: int = 224, num_classes: int = 1000
) -> dict[str, Tensor]:
    """Random images and labels."""
    return {
        "image": torch.randn(batch_size, 3, image_size, image_size),
        "labels": torch.randint(0, num_classes, (batch_size,)),
    }
