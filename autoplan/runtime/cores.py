"""Cores of a host, shared out among the ranks that run on them."""

from __future__ import annotations

import os

__all__ = ["share_cores"]


def share_cores(local_rank: int, local_ranks: int) -> frozenset[int]:
    """Bind this process to its part of the host's cores; which those are, none if not bound.

    Threads that are started later are bound too, so this comes before the process group. A rank
    that computes keeps a core busy, and one that waits lets its own communicate: left to itself
    the system puts a thread that is woken on the core of another rank, behind milliseconds of its
    work. A process that somebody has bound already, or one of more ranks than cores, is left alone.
    """
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:
        return frozenset()  # not on this system
    if len(cores) < (os.cpu_count() or 0) or not 1 < local_ranks <= len(cores):
        return frozenset()
    each = len(cores) // local_ranks
    own = frozenset(cores[local_rank * each : (local_rank + 1) * each])
    os.sched_setaffinity(0, own)
    return own
