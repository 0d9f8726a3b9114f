"""Bytes of live CPU tensors while something runs, as torch's allocator reports them.

Independent of any plan: every allocation of the CPU allocator is an event of the profiler, those
of autograd, optimizers and of the threads that carry their caller's state (gloo's) included.
Only torch is imported, so this runs beside a generated program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["Meter"]

_MEMORY = "[memory]"
_SPAN = "metered span"


class Meter:
    """Context in which allocations are seen; enter it before the first tensor exists.

    Tensors that are older are not counted, nor is their end.

    >>> with Meter() as meter:
    ...     kept = torch.empty(250)
    ...     meter.span(lambda: torch.empty(1000).fill_(1))
    >>> meter.peaks()
    [5000]
    """

    def __init__(self) -> None:
        self._profile: Any = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Meter:
        self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._profile.stop()

    def span(self, work: Callable[[], object]) -> None:
        """Run ``work``; its peak is one of `peaks`."""
        with record_function(_SPAN):
            work()

    def peaks(self) -> list[int]:
        """Largest sum of bytes of live tensors within each span, in their order."""
        return [max(level for _, level in curve) for curve in self.curves()]

    def curves(self) -> list[list[tuple[int, int]]]:
        """(nanoseconds, bytes of live tensors) at the start and at each change, by span."""
        events = list(self._profile.profiler.kineto_results.events())
        spans = sorted(
            (event.start_ns(), event.end_ns()) for event in events if event.name() == _SPAN
        )
        changes = sorted(
            (event.start_ns(), event.nbytes()) for event in events if event.name() == _MEMORY
        )
        curves: list[list[tuple[int, int]]] = []
        position = level = 0
        for start, end in spans:
            while position < len(changes) and changes[position][0] < start:
                level += changes[position][1]
                position += 1
            curve = [(start, level)]
            while position < len(changes) and changes[position][0] <= end:
                level += changes[position][1]
                curve.append((changes[position][0], level))
                position += 1
            curves.append(curve)
        return curves
