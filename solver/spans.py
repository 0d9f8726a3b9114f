"""Tables over spans of a chain's items: entry [l, i] is of items i to i + l, both included.

A table has ``reach`` rows, so it leaves out spans of more items. Entries whose span would go
beyond the last item hold something of no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["at_ends", "inside", "most_items", "span_maxima", "span_sums", "tied_bytes", "windows"]

_Number = TypeVar("_Number", np.float64, np.int64)


def span_sums(values: NDArray[_Number], reach: int) -> NDArray[_Number]:
    """Sums of ``values`` [..., item] over spans, [..., l, i]."""
    count = values.shape[-1]
    prefix = np.zeros((*values.shape[:-1], count + reach), dtype=values.dtype)
    values.cumsum(axis=-1, out=prefix[..., 1 : count + 1])
    return windows(prefix, count, skip=1) - prefix[..., None, :count]


def span_maxima(values: NDArray[np.int64], reach: int) -> NDArray[np.int64]:
    """Largest of ``values`` [..., item], which are not negative, in each span."""
    return np.maximum.accumulate(at_ends(values, reach), axis=-2)


def most_items(values: NDArray[Any], limit: float) -> int:
    """Items of the longest span whose ``values`` [item], not negative, sum to at most ``limit``."""
    prefix = np.concatenate((np.zeros(1), np.cumsum(values)))
    # Too many because of rounding does no harm, too few would.
    ends = np.searchsorted(prefix, prefix + limit * (1 + 1e-9), side="right")
    return int((ends - np.arange(len(ends))).max()) - 1


def at_ends(values: NDArray[_Number], reach: int) -> NDArray[_Number]:
    """``values`` [..., item] of each span's last item, [..., l, i]; 0 beyond the last."""
    count = values.shape[-1]
    padded = np.zeros((*values.shape[:-1], count + reach - 1), dtype=values.dtype)
    padded[..., :count] = values
    return windows(padded, count)


def windows(values: NDArray[_Number], width: int, *, skip: int = 0) -> NDArray[_Number]:
    """View [..., l, i] of the contiguous ``values`` [..., skip + l + i], with i below ``width``."""
    *others, length = values.shape
    shape = (*others, length - skip - width + 1, width)
    # numpy's sliding_window_view takes thirty times as long to make the same.
    return np.ndarray(
        shape, values.dtype, values, skip * values.itemsize, (*values.strides, values.itemsize)
    )


def inside(count: int, reach: int) -> NDArray[np.bool_]:
    """Spans that end at the last item or before."""
    items = np.arange(count)
    return items + np.arange(reach)[:, None] < count


def tied_bytes(tied: Sequence[Sequence[tuple[str, int]]], reach: int) -> NDArray[np.int64]:
    """Bytes of the keys in each span, each once; ``tied`` lists (key, bytes) of each item."""
    total = np.zeros((reach, len(tied)), dtype=np.int64)
    firsts = np.arange(len(tied))
    lasts = firsts + np.arange(reach)[:, None]
    previous: dict[str, int] = {}
    for index, uses in enumerate(tied):
        for key, size in uses:
            # A span that starts after the last use of the key pays for it here.
            pays = (firsts > previous.get(key, -1)) & (firsts <= index) & (lasts >= index)
            total += size * pays
            previous[key] = index
    return total
