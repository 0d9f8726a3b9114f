"""Any classifier of torchvision, by name.

``autoplan solve torchvision_model.py:model --set name=swin_t --cluster 8xh100``
"""

from __future__ import annotations

import torch
import torchvision
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
    name: str = "resnet50", num_classes: int = 1000, drop_path: float | None = None
) -> Classifier:
    """Network of that name with random weights; ``drop_path`` replaces its stochastic depth."""
    net = torchvision.models.get_model(name, num_classes=num_classes)
    if drop_path is not None:
        for child in net.modules():
            if isinstance(child, torchvision.ops.StochasticDepth):
                child.p = drop_path
    return Classifier(net)


def batch(
    batch_size: int, seq_len: int, image_size: int = 224, num_classes: int = 1000
) -> dict[str, Tensor]:
    """Random images and labels."""
    return {
        "image": torch.randn(batch_size, 3, image_size, image_size),
        "labels": torch.randint(0, num_classes, (batch_size,)),
    }
