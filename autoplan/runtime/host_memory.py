"""Memory of the host that a CPU rank frees and takes again, step after step."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Parameters of mallopt in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process keep memory that tensors on the CPU gave back; whether that can be had.

    glibc gives large blocks back to the system, which then fills each page with zeros when it
    is touched again: operators that only move memory take twice as long. A training step needs
    the same memory every time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library, which has its own ways
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
