"""Operators on memory that no cache holds any more."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from torch import Tensor

__all__ = ["Cold"]

_COLD = 256 * 2**20
_MAX_COPIES = 512


class Cold:
    """Runs an operator on operands, and into memory, that no cache holds any more.

    In a training step every tensor is touched once a pass and kept for the backward; the same
    operands again and again would measure the cache instead.
    """

    def __init__(self, make: Callable[[], tuple[Tensor, ...]], run: Callable[..., Tensor]) -> None:
        first = make()
        size = sum(x.numel() * x.element_size() for x in first)
        copies = max(1, min(_MAX_COPIES, _COLD // size))
        self._operands = itertools.cycle([first, *(make() for _ in range(copies - 1))])
        self._kept: deque[Tensor] = deque(maxlen=copies)
        self._run = run

    def __call__(self) -> None:
        """Run it on the next operands."""
        self._kept.append(self._run(*next(self._operands)))
