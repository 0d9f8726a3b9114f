"""Recomputation of activations instead of keeping them."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils import checkpoint as torch_checkpoint

__all__ = ["checkpoint"]


def checkpoint(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Result of the block; its activations are computed again in the backward pass.

    The generator states are restored for that, so dropout masks repeat.
    """
    return torch_checkpoint.checkpoint(
        block, *args, use_reentrant=False, preserve_rng_state=True, **kwargs
    )
