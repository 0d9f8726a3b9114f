"""Bytes that torch's allocator hands out while something runs."""

from __future__ import annotations

from itertools import accumulate

import torch


def peak(work):
    """Most bytes that live besides those before, and what ``work`` returned."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        result = work()
    events = profile.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(changes)), result
