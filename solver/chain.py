"""A chain of blocks to be cut into stages, each block with points to choose from.

Stage s of items i..k-1 takes the sum of the times of their points, and holds

    sum static + in_flight[s] sum activation + max transient + fixed[s, i, k]

bytes, where ``fixed`` is what no point changes: boundaries and tied parameters. With the
microbatches in flight given, a point is a time, a weight ``static + in_flight activation`` that
adds up, and a transient of which only the largest counts.

Tables over ranges are indexed [i, k] from 0 to the number of items, both ends included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chain", "ChainItem", "Point", "range_maxima", "range_sums"]

_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One way to run a block: seconds for a microbatch, bytes on a rank.

    ``activation`` is held for each microbatch in flight; ``transient`` exists one block at a
    time.
    """

    forward: float
    backward: float
    static: int
    activation: int
    transient: int

    @property
    def time(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward

    def weight(self, in_flight: int) -> int:
        """Bytes that add up over the blocks of a stage."""
        return self.static + in_flight * self.activation


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainItem:
    """One block.

    ``boundary`` bytes are held for each microbatch in flight when a stage ends here, and once
    for every microbatch of the step on both sides of the end; ``send`` is seconds to hand one
    microbatch on. ``tied`` lists (key, bytes) that a stage holds once for all its items with
    that key; they come on top of ``static``.
    """

    points: tuple[Point, ...]
    boundary: int
    send: float
    tied: tuple[tuple[str, int], ...] = ()


class Chain:
    """Items and what follows from them for any range of them at a stage.

    Blocks with the same points are of one class: ``classes`` lists their points, ``class_of``
    says which each item has, ``counts`` [i, class] how many there are before item i. Stages with
    as many microbatches in flight are alike: ``flights`` lists those numbers and ``group_of``
    says which of them each stage has. ``fixed`` [group, i, k] is bytes; ``crossing`` [k] seconds
    of both messages of a microbatch at a stage's end.
    """

    def __init__(
        self, items: Sequence[ChainItem], in_flight: Sequence[int], microbatches: int
    ) -> None:
        count = len(items)
        index: dict[tuple[Point, ...], int] = {}
        self.items = tuple(items)
        self.class_of = np.array([index.setdefault(item.points, len(index)) for item in items])
        self.classes = tuple(index)
        self.counts = np.zeros((count + 1, len(index)), dtype=np.int64)
        self.counts[1:] = np.cumsum(np.eye(len(index), dtype=np.int64)[self.class_of], axis=0)
        self.flights = tuple(dict.fromkeys(in_flight))
        self.group_of = tuple(self.flights.index(flight) for flight in in_flight)
        self.crossing = np.array([0.0, *(2 * item.send for item in items)])
        self.crossing[count] = 0.0
        sent = np.array([0, *(item.boundary for item in items)], dtype=np.int64)
        sent[count] = 0
        ends = _tied_bytes(items) + microbatches * (sent[:, None] + sent[None, :])
        self.fixed = ends + np.multiply.outer(np.array(self.flights, dtype=np.int64), sent)[:, None]

    def of_items(self, values: Sequence[int] | Sequence[float]) -> NDArray[Any]:
        """Values of the classes, for each item."""
        of_items: NDArray[Any] = np.array(values)[self.class_of]
        return of_items

    def peak(self, group: int, first: int, last: int, choices: Sequence[int]) -> int:
        """Bytes of items first..last-1 at those points, at a stage of the group."""
        points = [
            item.points[choice]
            for item, choice in zip(self.items[first:last], choices, strict=True)
        ]
        held = sum(point.weight(self.flights[group]) for point in points)
        fixed = int(self.fixed[group, first, last])
        return fixed + held + max(point.transient for point in points)

    def seconds(
        self, ranges: Sequence[tuple[int, int]], choices: Sequence[int], microbatches: int
    ) -> float:
        """Seconds of a cut: the objective of `solver.inter`."""
        times = [
            sum(self.items[i].points[choices[i]].time for i in range(first, last))
            for first, last in ranges
        ]
        sends = sum(self.items[last - 1].send for _, last in ranges[:-1])
        return sum(times) + (microbatches - 1) * max(times) + 2 * sends


def range_sums(values: NDArray[_Number]) -> NDArray[_Number]:
    """Sums over items i..k-1 of their values."""
    prefix = np.concatenate((np.zeros(1, dtype=values.dtype), np.cumsum(values)))
    return prefix[None, :] - prefix[:, None]


def range_maxima(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Maxima over items i..k-1 of their values, which are not negative; 0 elsewhere."""
    count = len(values)
    maxima = np.zeros((count + 1, count + 1), dtype=np.int64)
    upper = np.triu(np.broadcast_to(values, (count, count)))
    np.maximum.accumulate(upper, axis=1, out=maxima[:count, 1:])
    return maxima


def _tied_bytes(items: Sequence[ChainItem]) -> NDArray[np.int64]:
    count = len(items)
    total = np.zeros((count + 1, count + 1), dtype=np.int64)
    previous: dict[str, int] = {}
    for index, item in enumerate(items):
        for key, size in item.tied:
            # A range that starts after the last use of the key pays for it here.
            total[previous.get(key, -1) + 1 : index + 1, index + 1 :] += size
            previous[key] = index
    return total
