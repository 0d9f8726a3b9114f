"""Rank 0 leaves while a thread of gloo waits for the interpreter to let go of a tensor.

`sum` holds the interpreter lock as the last of rank 0's `atexit` functions; rank 1 joins the
collective meanwhile. The lock passes to the thread only after the interpreter's tear-down began,
if there is one.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

if os.environ["RANK"] == "0":
    atexit.register(sum, range(10**8))

import torch
import torch.distributed as dist

from autoplan.runtime.leave import leave


def main(how: str) -> None:
    """End as ``how`` says."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1])
    setattr(sys, "kept", group)  # noqa: B010  - as torch's caches keep it
    dist.barrier(group)
    x = torch.ones(4)
    if dist.get_rank() == 1:
        time.sleep(0.5)
    work = dist.all_reduce(x, group=group, async_op=True)
    if dist.get_rank() == 1:
        work.wait()
        os._exit(0)
    del x, work
    atexit.register(print, "leaving ok")
    dist.destroy_process_group()
    if how == "leave":
        leave(0)
    sys.exit(0)


main(sys.argv[1])
