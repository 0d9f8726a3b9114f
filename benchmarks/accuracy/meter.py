"""Bytes of live CPU tensors while something runs, as torch's allocator reports them.

Independent of any plan: every allocation of the CPU allocator is an event of the profiler, those
of autograd, optimizers and of the threads that carry their caller's state (gloo's) included.
Only torch is imported, so this runs beside a generated program.
"""

from __future__ import annotations

import bisect
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
        spans: list[tuple[int, int]] = []
        changes: list[tuple[int, int, int]] = []
        pending = list(self._profile.profiler.kineto_results.experimental_event_tree())
        while pending:
            event = pending.pop()
            pending += event.children
            if event.name == _SPAN:
                spans.append((event.start_time_ns, event.end_time_ns))
            elif event.name == _MEMORY:
                block = event.extra_fields
                changes.append((event.start_time_ns, block.ptr, block.alloc_size))
        changes.sort(key=lambda change: change[0])
        live = _Blocks()
        curves: list[list[tuple[int, int]]] = []
        position = 0
        for start, end in sorted(spans):
            while position < len(changes) and changes[position][0] < start:
                live.change(*changes[position][1:])
                position += 1
            curve = [(start, live.total)]
            while position < len(changes) and changes[position][0] <= end:
                live.change(*changes[position][1:])
                curve.append((changes[position][0], live.total))
                position += 1
            curves.append(curve)
        return curves


class _Blocks:
    """Live blocks by address.

    A thread of gloo may be the last that holds a tensor, and its end is then no event: such a
    block is over when another is given memory of it.
    """

    def __init__(self) -> None:
        self.total = 0
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def change(self, address: int, size: int) -> None:
        """A block that begins (positive size) or ends."""
        if size <= 0:
            if address in self._sizes:
                self._remove(address)
            return
        index = bisect.bisect_left(self._starts, address)
        if index and self._starts[index - 1] + self._sizes[self._starts[index - 1]] > address:
            index -= 1
        while index < len(self._starts) and self._starts[index] < address + size:
            self._remove(self._starts[index])
        self._starts.insert(index, address)
        self._sizes[address] = size
        self.total += size

    def _remove(self, address: int) -> None:
        self._starts.pop(bisect.bisect_left(self._starts, address))
        self.total -= self._sizes.pop(address)
