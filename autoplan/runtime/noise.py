"""Random tensors that agree between ranks where the value is replicated, as `random` does.

Each operator is a pair: ``replicated_`` draws the same numbers on the ranks of the axis,
``sharded_`` others on each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .axis import Axis
from .random import draw_generator, is_dropout_enabled

__all__ = [
    "replicated_bernoulli",
    "replicated_exponential",
    "replicated_multinomial",
    "replicated_normal",
    "replicated_rand",
    "replicated_rand_like",
    "replicated_randint",
    "replicated_randint_like",
    "replicated_randn",
    "replicated_randn_like",
    "replicated_randperm",
    "replicated_uniform",
    "sharded_bernoulli",
    "sharded_exponential",
    "sharded_multinomial",
    "sharded_normal",
    "sharded_rand",
    "sharded_rand_like",
    "sharded_randint",
    "sharded_randint_like",
    "sharded_randn",
    "sharded_randn_like",
    "sharded_uniform",
]

Draw = Callable[..., Tensor]


def _pair(draw: Draw) -> tuple[Draw, Draw]:
    """The replicated and the sharded form of ``draw(*args, offset=..., **kwargs)``."""

    def replicated(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
        return draw(*args, offset=0, **kwargs)

    def sharded(*args: Any, axis: Axis, **kwargs: Any) -> Tensor:
        return draw(*args, offset=axis.rank, **kwargs)

    return replicated, sharded


def _like(make: Callable[..., Tensor]) -> Draw:
    def draw(
        x: Tensor,
        *bounds: int,
        offset: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        generator = draw_generator(x.device, offset)
        return make(*bounds, x.shape, generator=generator, dtype=dtype or x.dtype, device=x.device)

    return draw


def _sized(make: Callable[..., Tensor]) -> Draw:
    def draw(
        *args: Any,
        offset: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        where = torch.device(device or "cpu")
        generator = draw_generator(where, offset)
        return make(*args, generator=generator, dtype=dtype, device=where)

    return draw


def _bernoulli(x: Tensor, p: float | None = None, *, offset: int) -> Tensor:
    """Zeros and ones; no gradient flows to the probabilities, as in torch."""
    if not is_dropout_enabled():
        return torch.ones_like(x)
    generator = draw_generator(x.device, offset)
    if p is None:
        return torch.bernoulli(x, generator=generator)
    return torch.empty_like(x).bernoulli_(p, generator=generator)


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, offset: int) -> Tensor:
    return torch.empty_like(x).uniform_(low, high, generator=draw_generator(x.device, offset))


def _exponential(x: Tensor, rate: float = 1.0, *, offset: int) -> Tensor:
    return torch.empty_like(x).exponential_(rate, generator=draw_generator(x.device, offset))


def _multinomial(
    weights: Tensor, num_samples: int, replacement: bool = False, *, offset: int
) -> Tensor:
    generator = draw_generator(weights.device, offset)
    return torch.multinomial(weights, num_samples, replacement, generator=generator)


def _rand(size: Sequence[int], *, generator: Any, dtype: Any, device: Any) -> Tensor:
    if not is_dropout_enabled():
        return torch.full(size, 0.5, dtype=dtype, device=device)
    return torch.rand(size, generator=generator, dtype=dtype, device=device)


def _randint(*args: Any, generator: torch.Generator, dtype: Any, device: Any) -> Tensor:
    *bounds, size = args
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    kind = torch.int64 if dtype is None else dtype
    return torch.randint(low, high, size, generator=generator, dtype=kind, device=device)


def _normal(
    mean: float, std: float, size: Sequence[int], *, generator: Any, dtype: Any, device: Any
) -> Tensor:
    return torch.normal(mean, std, size, generator=generator, dtype=dtype, device=device)


replicated_bernoulli, sharded_bernoulli = _pair(_bernoulli)
replicated_exponential, sharded_exponential = _pair(_exponential)
replicated_multinomial, sharded_multinomial = _pair(_multinomial)
replicated_normal, sharded_normal = _pair(_sized(_normal))
replicated_rand, sharded_rand = _pair(_sized(_rand))
replicated_rand_like, sharded_rand_like = _pair(_like(_rand))
replicated_randint, sharded_randint = _pair(_sized(_randint))
replicated_randint_like, sharded_randint_like = _pair(_like(_randint))
replicated_randn, sharded_randn = _pair(_sized(torch.randn))
replicated_randn_like, sharded_randn_like = _pair(_like(torch.randn))
replicated_randperm, _ = _pair(_sized(torch.randperm))
replicated_uniform, sharded_uniform = _pair(_uniform)
