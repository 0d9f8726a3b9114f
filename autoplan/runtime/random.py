"""Random operators whose masks agree between ranks where the value is replicated.

Each call draws one seed from the CPU's default generator. That generator is seeded equally
on the ranks of the ``tp`` axis and differently elsewhere, so ranks that issue the same calls
draw the same seeds; a sharded operator adds its coordinate. Recomputation restores the CPU
generator (`torch.utils.checkpoint` does), hence repeats the mask.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .axis import Axis

__all__ = [
    "draw_generator",
    "replicated_alpha_dropout",
    "replicated_attention",
    "replicated_dropout",
    "replicated_feature_alpha_dropout",
    "replicated_feature_dropout",
    "set_dropout",
    "sharded_alpha_dropout",
    "sharded_attention",
    "sharded_dropout",
    "sharded_feature_alpha_dropout",
    "sharded_feature_dropout",
]

_enabled = True


def set_dropout(enabled: bool) -> None:
    """Switch all dropout of the program on or off, and draws from [0, 1) and of zeros and ones.

    When off these are 0.5 and ones, so that a model that drops layers keeps all of them.
    """
    global _enabled
    _enabled = enabled


def is_dropout_enabled() -> bool:
    """False while the program is compared with its model: nothing is to depend on chance."""
    return _enabled


def _draw_seed() -> int:
    return int(torch.randint(2**62, (), device="cpu").item())


def draw_generator(device: torch.device, offset: int) -> torch.Generator:
    """Generator on ``device`` with a fresh seed; ``offset`` tells ranks apart."""
    return torch.Generator(device=device).manual_seed(_draw_seed() + offset)


def _keep(x: Tensor, p: float, offset: int, *, whole_channels: bool) -> Tensor:
    """Mask of what is kept, with probability 1 - ``p`` an element or a channel."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability {p} is not in [0, 1]")
    shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if whole_channels else x.shape
    keep = torch.empty(shape, dtype=torch.bool, device=x.device)
    keep.bernoulli_(1 - p, generator=draw_generator(x.device, offset))
    return keep


def _dropout(
    x: Tensor, p: float, train: bool, offset: int, *, whole_channels: bool = False
) -> Tensor:
    if not train or not _enabled or p == 0:
        return x
    keep = _keep(x, p, offset, whole_channels=whole_channels)
    if p == 1:
        return x * 0
    return x * keep * (1 / (1 - p))


# Where a self-normalising network saturates: minus the scale times alpha of ``selu``.
_SATURATION = -1.7580993408473766


def _alpha_dropout(
    x: Tensor, p: float, train: bool, offset: int, *, whole_channels: bool = False
) -> Tensor:
    """Dropout to the saturated value, scaled and shifted so that mean and variance stay."""
    if not train or not _enabled or p == 0:
        return x
    keep = _keep(x, p, offset, whole_channels=whole_channels)
    if p == 1:
        return x * 0
    scale: float = ((1 - p) * (1 + p * _SATURATION**2)) ** -0.5
    dropped = _SATURATION * scale
    return torch.where(keep, x * scale, dropped) - dropped * p


def replicated_alpha_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout that keeps mean and variance, equal on the ranks of the axis."""
    return _alpha_dropout(x, p, train, 0)


def sharded_alpha_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of a shard that keeps mean and variance."""
    return _alpha_dropout(x, p, train, axis.rank)


def replicated_feature_alpha_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of whole channels that keeps mean and variance, equal on the ranks."""
    return _alpha_dropout(x, p, train, 0, whole_channels=True)


def sharded_feature_alpha_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of whole channels of a shard that keeps mean and variance."""
    return _alpha_dropout(x, p, train, axis.rank, whole_channels=True)


def replicated_feature_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of whole channels, the same on the ranks of the axis."""
    return _dropout(x, p, train, 0, whole_channels=True)


def sharded_feature_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of whole channels of a shard of samples or channels."""
    return _dropout(x, p, train, axis.rank, whole_channels=True)


def replicated_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of a replicated tensor: the mask is equal on the ranks of the axis."""
    if axis.size == 1 and torch.compiler.is_compiling():
        return F.dropout(x, p, train and _enabled)  # fused: a seed of its own would be a break
    return _dropout(x, p, train, 0)


def sharded_dropout(x: Tensor, p: float, train: bool, *, axis: Axis) -> Tensor:
    """Dropout of a shard: each rank of the axis has a mask of its own."""
    return _dropout(x, p, train, axis.rank)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    offset: int,
) -> Tensor:
    if not _enabled or dropout_p == 0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    seed = _draw_seed() + offset
    devices = [query.device] if query.is_cuda else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def replicated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: Axis,
) -> Tensor:
    """Attention with dropout on replicated tensors: equal masks on the ranks of the axis."""
    if axis.size == 1 and torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p if _enabled else 0.0,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, 0)


def sharded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: Axis,
) -> Tensor:
    """Attention with dropout on shards (heads or batch): masks differ between ranks."""
    return _attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, axis.rank
    )
