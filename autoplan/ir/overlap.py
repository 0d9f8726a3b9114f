"""Kernels and collectives that run at the same time, and slow each other down."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NO_SLOW_DOWN", "NO_WAITS", "GatherWaits", "SlowDown", "overlapped_time"]


@dataclass(frozen=True, slots=True)
class SlowDown:
    """How many times as long kernels take beside a collective, and a collective beside kernels."""

    compute: float = 1.0
    network: float = 1.0

    def __post_init__(self) -> None:
        assert self.compute >= 1.0 and self.network >= 1.0


NO_SLOW_DOWN = SlowDown()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherWaits:
    """Seconds that a pipelined stage's passes take longer for gathers of its parameters.

    ``forward``: one that gathers all units. ``backward``: likewise, from when the first of its
    units is there. That one's gather runs beside the last unit of the forward before, makes that
    ``beside`` longer, and has ``left`` to go when it ends.
    """

    forward: float = 0.0
    backward: float = 0.0
    beside: float = 0.0
    left: float = 0.0


NO_WAITS = GatherWaits()


def overlapped_time(
    compute: float, network: float, compute_slow_down: float, network_slow_down: float
) -> float:
    """Seconds of kernels beside collectives: both slowed while both run, the rest at full speed.

    >>> overlapped_time(2.0, 2.0, 1.25, 1.25), overlapped_time(2.0, 3.0, 1.0, 1.0)
    (2.5, 3.0)
    """
    slowed = compute * compute_slow_down, network * network_slow_down
    if slowed[0] <= slowed[1]:
        return slowed[0] + network - slowed[0] / network_slow_down
    return slowed[1] + compute - slowed[1] / compute_slow_down
