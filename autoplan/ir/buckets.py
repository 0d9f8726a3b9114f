"""What DDP's sums of gradients add to a step: they run in buckets, beside the backward.

A bucket is reduced when its last gradient is there, one bucket after another. So the first of
them wait for gradients, and nothing hides the last one. Source: torch's DistributedDataParallel
(Li et al. 2020, section 3.2), whose first bucket is of 1 MiB and whose others are of 25 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoplan.ir.overlap import SlowDown

__all__ = ["BucketedBlock", "buckets", "exposed_reduction"]

_FIRST, _FURTHER = 2**20, 25 * 2**20


@dataclass(frozen=True, slots=True)
class BucketedBlock:
    """Seconds of a block's backward, bytes of its gradients, and seconds to sum those."""

    backward: float
    size: float
    reduce: float


def exposed_reduction(blocks: Iterable[BucketedBlock], slow_down: SlowDown) -> float:
    """Seconds by which summing outlasts the backward, whose blocks are given in its order.

    A block's gradients come evenly over its backward.

    >>> MiB = 2**20
    >>> exposed_reduction([BucketedBlock(2.0, MiB, 1.0), BucketedBlock(2.0, MiB, 1.0)], SlowDown())
    1.0
    """
    given = tuple(blocks)
    whole = sum(block.backward for block in given)
    now = done = 0.0  # seconds, and seconds of the backward's work behind us
    for ready, seconds in buckets(given):
        if done < ready:
            now, done = now + ready - done, ready
        left = whole - done
        slowed = left * slow_down.compute, seconds * slow_down.network
        if slowed[1] <= slowed[0]:
            now, done = now + slowed[1], done + slowed[1] / slow_down.compute
        else:
            now, done = now + slowed[0] + seconds - slowed[0] / slow_down.network, whole
    return max(0.0, now - done)


def buckets(blocks: Sequence[BucketedBlock]) -> Iterator[tuple[float, float]]:
    """Seconds of work until a bucket is full, and seconds to sum it."""
    room = float(_FIRST)
    worked = held = 0.0
    for block in blocks:
        left = block.size
        while left > room:
            left -= room
            held += block.reduce * room / block.size
            yield worked + block.backward * (1.0 - left / block.size), held
            held, room = 0.0, float(_FURTHER)
        if block.size:
            held += block.reduce * left / block.size
            room -= left
        worked += block.backward
    if held:
        yield worked, held
