"""A chain of blocks to be cut into stages, each block with points to choose from.

A stage takes the sum of the times of its blocks' points, and holds

    sum static + in_flight sum activation + max transient + fixed

bytes, where ``fixed`` is what no point changes: what the stage holds anyway, boundaries and tied
parameters. With the
microbatches in flight given, a point is a time, a weight ``static + in_flight activation`` that
adds up, and a transient of which only the largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.solver.spans import at_ends, tied_bytes

__all__ = ["Chain", "ChainItem", "Point"]

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
    """Items, and what any range of them has at a stage.

    Blocks with the same points are of one class: ``classes`` lists their points, ``class_of``
    says which each item has, ``counts`` [i, class] how many there are before item i. Stages with
    as many microbatches in flight and as many ``resident`` bytes are of one group: ``group_of``
    says of which, ``flights`` how many microbatches each has. ``times``, ``static``,
    ``activation`` and ``transient`` are of [class, point], the first again where a class has
    fewer points than others; ``single`` says that none has a choice. ``crossing`` [item] is
    seconds of both messages of a microbatch at a stage's end, ``least_times`` [item] seconds of
    its fastest point. No stage has more than ``longest`` items. Of a step's seconds the longest
    stage's count ``turns`` times, each other's once.
    """

    def __init__(
        self,
        items: Sequence[ChainItem],
        in_flight: Sequence[int],
        microbatches: int,
        resident: Sequence[int] = (),
        turns: int = 0,
    ) -> None:
        index: dict[tuple[Point, ...], int] = {}
        numbers: dict[int, int] = {}  # by identity: blocks of a class have the very same points
        for item in items:
            if id(item.points) not in numbers:
                numbers[id(item.points)] = index.setdefault(item.points, len(index))
        self.items = tuple(items)
        self.microbatches = microbatches
        self.turns = turns or microbatches
        self.class_of = np.array([numbers[id(item.points)] for item in items])
        self.classes = tuple(index)
        self.counts = np.zeros((len(items) + 1, len(index)), dtype=np.int64)
        self.counts[np.arange(1, len(items) + 1), self.class_of] = 1
        np.cumsum(self.counts, axis=0, out=self.counts)
        stages = list(zip(in_flight, resident or [0] * len(in_flight), strict=True))
        groups = list(dict.fromkeys(stages))
        self.flights = tuple(flight for flight, _ in groups)
        self.group_of = tuple(groups.index(stage) for stage in stages)
        self._resident = np.array([size for _, size in groups], dtype=np.int64)
        width = max(map(len, index))
        padded = [points + points[:1] * (width - len(points)) for points in index]
        self.times, self.static, self.activation, self.transient = (
            np.array([[getattr(point, name) for point in points] for points in padded])
            for name in ("time", "static", "activation", "transient")
        )
        self.longest = len(items) - len(in_flight) + 1
        self.single = all(len(points) == 1 for points in index)
        self.least_times = self.of_items(self.times.min(axis=1))
        self.crossing = np.array([*(2 * item.send for item in items[:-1]), 0.0])
        self._sent = np.array([*(item.boundary for item in items[:-1]), 0], dtype=np.int64)

    def fixed(self, reach: int) -> NDArray[np.int64]:
        """Bytes [group, l, i] that no point changes: tied parameters and boundaries."""
        sent = at_ends(self._sent, reach)
        received = np.concatenate((np.zeros(1, dtype=np.int64), self._sent[:-1]))
        fixed = self.microbatches * (sent + received)
        if any(item.tied for item in self.items):
            fixed += tied_bytes([item.tied for item in self.items], reach)
        fixed = fixed + np.multiply.outer(np.array(self.flights, dtype=np.int64), sent)
        return fixed + self._resident[:, None, None]

    def weights(self) -> NDArray[np.int64]:
        """Bytes [group, class, point] that add up over the blocks of a stage."""
        flights = np.array(self.flights)[:, None, None]
        weights: NDArray[np.int64] = self.static + flights * self.activation
        return weights

    def of_items(self, values: NDArray[_Number]) -> NDArray[_Number]:
        """``values`` [..., class], for each item."""
        return values[..., self.class_of]

    def peak(self, group: int, first: int, last: int, choices: Sequence[int]) -> int:
        """Bytes of items first..last-1 at those points, at a stage of the group."""
        items, flight = self.items[first:last], self.flights[group]
        points = [item.points[choice] for item, choice in zip(items, choices, strict=True)]
        held = sum(point.weight(flight) for point in points)
        held += sum({key: size for item in items for key, size in item.tied}.values())
        ends = self.microbatches * int(self._sent[first - 1]) if first else 0
        ends += (self.microbatches + flight) * int(self._sent[last - 1])
        held += int(self._resident[group])
        return held + ends + max(point.transient for point in points)

    def seconds(self, ranges: Sequence[tuple[int, int]], choices: Sequence[int]) -> float:
        """Seconds of a cut: the objective of `solver.inter`."""
        times = [
            sum(self.items[i].points[choices[i]].time for i in range(first, last))
            for first, last in ranges
        ]
        sends = sum(self.items[last - 1].send for _, last in ranges[:-1])
        return sum(times) + (self.turns - 1) * max(times) + 2 * sends
