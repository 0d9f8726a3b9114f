"""Recomputation of activations instead of keeping them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils import checkpoint as torch_checkpoint

__all__ = ["checkpoint", "recomputing"]

_STATE = threading.local()


def recomputing() -> bool:
    """Whether a forward runs for the second time, so that what it counts is counted already."""
    return getattr(_STATE, "active", False)


@contextmanager
def _again() -> Iterator[None]:
    before = recomputing()
    _STATE.active = True
    try:
        yield
    finally:
        _STATE.active = before


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _again()


def checkpoint(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Result of the block; its activations are computed again in the backward pass.

    The generator states are restored for that, so dropout masks repeat.
    """
    return torch_checkpoint.checkpoint(
        block,
        *args,
        use_reentrant=False,
        preserve_rng_state=True,
        context_fn=_contexts,
        **kwargs,
    )
