"""Mean losses of elements or rows of which each rank has as many: addends of the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .axis import Axis

__all__ = [
    "partial_binary_cross_entropy",
    "partial_binary_cross_entropy_with_logits",
    "partial_cosine_embedding_loss",
    "partial_hinge_embedding_loss",
    "partial_huber_loss",
    "partial_kl_div",
    "partial_l1_loss",
    "partial_margin_ranking_loss",
    "partial_mse_loss",
    "partial_smooth_l1_loss",
    "partial_soft_margin_loss",
    "partial_triplet_margin_loss",
]


def _share(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Function that takes the operator's arguments and ``axis``: its mean over the size."""

    def share(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
        return operator(*args, **kwargs) / axis.size

    return share


_aten = torch.ops.aten
partial_binary_cross_entropy = _share(_aten.binary_cross_entropy.default)
partial_binary_cross_entropy_with_logits = _share(_aten.binary_cross_entropy_with_logits.default)
partial_cosine_embedding_loss = _share(_aten.cosine_embedding_loss.default)
partial_hinge_embedding_loss = _share(_aten.hinge_embedding_loss.default)
partial_huber_loss = _share(_aten.huber_loss.default)
partial_kl_div = _share(_aten.kl_div.default)
partial_l1_loss = _share(_aten.l1_loss.default)
partial_margin_ranking_loss = _share(_aten.margin_ranking_loss.default)
partial_mse_loss = _share(_aten.mse_loss.default)
partial_smooth_l1_loss = _share(_aten.smooth_l1_loss.default)
partial_soft_margin_loss = _share(_aten.soft_margin_loss.default)
partial_triplet_margin_loss = _share(_aten.triplet_margin_loss.default)
