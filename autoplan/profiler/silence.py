"""Collectives that move nothing, for timing what a rank computes around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from autoplan.runtime import collectives

__all__ = ["silent_collectives"]


@contextmanager
def silent_collectives(exclude: Callable[[Callable[[], object]], None]) -> Iterator[None]:
    """Let collectives fill their results from what this rank has; ``exclude`` runs them.

    Results have finite values of the right shapes, so what follows computes as it would.
    """

    def off_the_clock(move: Callable[..., None]) -> Callable[..., None]:
        def moved(*args: Any, **kwargs: Any) -> None:
            exclude(lambda: move(*args, **kwargs))

        return moved

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        pass

    def gather(output: Tensor, local: Tensor, **kwargs: Any) -> None:
        output.view(-1, *local.shape).copy_(local)

    def scatter(local: Tensor, whole: Tensor, **kwargs: Any) -> None:
        local.copy_(whole.view(-1, *local.shape)[0])

    def all_to_all(
        output: Tensor,
        sent: Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        count = min(output.numel(), sent.numel())
        output.zero_()
        output.view(-1)[:count].copy_(sent.reshape(-1)[:count])

    replaced: list[tuple[Any, str, Callable[..., None]]] = [
        (dist, "all_reduce", all_reduce),
        (dist, "all_to_all_single", all_to_all),
        (collectives, "_all_gather_flat", gather),
        (collectives, "_reduce_scatter_flat", scatter),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, move in replaced:
            setattr(owner, name, off_the_clock(move))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
