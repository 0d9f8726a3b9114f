"""Timings of what torch's own wrappers do on the host: FSDP2's units, and recompute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from autoplan.ir.hardware import HostWork, UnitWork
from autoplan.profiles.schema import MaybeNoTime, Pace, Record, Repeats, Seconds, Spread

__all__ = ["RecomputeTiming", "UnitTiming", "unit_work"]


class RecomputeTiming(Record):
    """What the host does more for an operator of a block that is run again, in either pass.

    Running it again is not a part of it. ``block_forward`` and ``block_backward`` are once a block.
    """

    level: Literal["full", "selective"]
    forward: MaybeNoTime
    backward: MaybeNoTime
    block_forward: MaybeNoTime
    block_backward: MaybeNoTime
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0


class UnitTiming(Record):
    """A unit of FSDP2: its forward gathers ``numel`` float32 in ``parameters`` tensors.

    Its backward gathers them again and reduces their gradients. Neither computes anything else.
    """

    parameters: Annotated[int, Field(ge=1)]
    numel: Annotated[int, Field(ge=1)]
    forward: Seconds
    backward: Seconds
    spread: Spread = 0.0
    repeats: Repeats = 0
    pace: Pace = 1.0

    @property
    def size(self) -> int:
        """Bytes of the parameters."""
        return 4 * self.numel


def unit_work(
    timings: Sequence[UnitTiming],
    gather: Callable[[int], float],
    reduce: Callable[[int], float],
) -> UnitWork | None:
    """What the collectives, in seconds by bytes, leave of the timings; None without any."""
    if not timings:
        return None
    unpack = _fit(timings, [t.forward - gather(t.size) for t in timings])
    packed = [t.backward - t.forward - reduce(t.size) for t in timings]
    return UnitWork(unpack=unpack, pack=_fit(timings, packed))


def _fit(timings: Sequence[UnitTiming], left: Sequence[float]) -> HostWork:
    """Least squares of the errors relative to the whole timing; no coefficient is negative."""
    columns = np.array([[1.0, t.parameters, t.size] for t in timings])
    weights = np.array([1.0 / (t.forward + t.backward) for t in timings])
    wanted = np.array(left) * weights
    best, least = np.zeros(3), float(wanted @ wanted)
    for count in range(1, 4):
        for chosen in combinations(range(3), count):
            part = columns[:, chosen] * weights[:, None]
            found = np.linalg.lstsq(part, wanted, rcond=None)[0]
            error = float(np.sum((part @ found - wanted) ** 2))
            if np.all(found >= 0.0) and error < least:
                least, best = error, np.zeros(3)
                best[list(chosen)] = found
    fixed, per_tensor, per_byte = map(float, best)
    return HostWork(fixed=fixed, per_tensor=per_tensor, per_byte=per_byte)
