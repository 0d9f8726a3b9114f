"""The graph at a third microbatch size, from those at two."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from autoplan.ir.graph import Graph

__all__ = ["NotAffineError", "at_size"]

T = TypeVar("T")


class NotAffineError(Exception):
    """Two graphs differ by more than integers affine in the microbatch size."""


def at_size(small: Graph, large: Graph, micro_batch_size: int) -> Graph:
    """Graph at ``micro_batch_size``; `NotAffineError` if the two differ otherwise."""
    step = large.micro_batch_size - small.micro_batch_size
    offset = micro_batch_size - small.micro_batch_size
    graph = _blend(small, large, step, offset, small.name)
    graph.validate()
    return graph


def _blend(small: T, large: T, step: int, offset: int, where: str) -> T:
    if type(small) is not type(large):
        raise NotAffineError(f"{where}: {small!r} and {large!r}")
    if isinstance(small, tuple):
        other = cast("tuple[Any, ...]", large)
        if len(small) != len(other):
            raise NotAffineError(f"{where}: {len(small)} and {len(other)} items")
        pairs = zip(small, other, strict=True)
        return cast(T, tuple(_blend(a, b, step, offset, where) for a, b in pairs))
    if small == large:
        return small
    if isinstance(small, int) and not isinstance(small, bool):
        slope, rest = divmod(cast(int, large) - small, step)
        if rest:
            raise NotAffineError(f"{where}: {small} and {large}")
        return cast(T, small + slope * offset)
    if is_dataclass(small) and not isinstance(small, type):
        inner = f"{where}.{getattr(small, 'name', type(small).__name__)}"
        values = {
            item.name: _blend(
                getattr(small, item.name), getattr(large, item.name), step, offset, inner
            )
            for item in fields(small)
            if item.init
        }
        return cast(T, type(small)(**values))
    raise NotAffineError(f"{where}: {small!r} and {large!r}")
