"""The end of a rank's process."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

__all__ = ["leave"]


def leave(code: int) -> NoReturn:
    """End the process with a code, without tearing the interpreter down; `atexit` is honoured.

    Torch's caches of sharded tensors hold on to process groups after they were destroyed, and so
    to gloo's threads. A thread that lets go of the tensors of its last collective needs the
    interpreter; if that is being torn down, torch aborts the process (SIGABRT, "terminate called
    without an active exception") although all work is done. Nothing tells when the threads have
    let go, so there must be no tear-down that they could fall into.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1  # what was written didn't arrive
    os._exit(code)
