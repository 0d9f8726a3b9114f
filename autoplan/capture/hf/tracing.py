"""Spots in the code of ``transformers`` that can't be exported, replaced by exact equals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["exportable", "settled"]


@contextmanager
def exportable(config: Any) -> Iterator[None]:
    """Context in which a model of ``config`` is exported."""
    from transformers import masking_utils

    with ExitStack() as stack:
        # It looks for packed samples at position ids by value. The batch has none of these, so
        # each sample is one sequence.
        stack.enter_context(
            _replaced(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
        )
        if config.model_type == "bloom":
            stack.enter_context(_bloom_gelu())
        yield


def settled(module: nn.Module) -> nn.Module:
    """The module in the state that its first forward leaves it in.

    A Swin block whose window fills its stage drops its shift when it first runs. Which do so
    is known where every stage halves evenly.
    """
    config: Any = module.config
    if config.model_type == "swin" and isinstance(config.image_size, int):
        least = config.patch_size << (len(config.depths) - 1)
        if config.image_size % least == 0:
            for part in module.modules():
                if hasattr(part, "set_shift_and_window_size"):
                    settle: Any = part.set_shift_and_window_size
                    settle(part.input_resolution)
    return module


@contextmanager
def _bloom_gelu() -> Iterator[None]:
    """GELU without its own backward, which is the derivative of its forward, written out."""
    from transformers.models.bloom import modeling_bloom

    forward: Callable[[Tensor], Tensor] = modeling_bloom.bloom_gelu_forward
    with _replaced(modeling_bloom.GeLUFunction, "apply", staticmethod(forward)):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
