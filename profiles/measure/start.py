"""How a rank that measures begins."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from autoplan.profiles.measure.device import Device
from autoplan.runtime import keep_freed_memory, share_cores

__all__ = ["start_rank"]


def start_rank(
    rank: int, ranks: int, device: Device, *, threads: int, store: str, timeout: timedelta
) -> None:
    """Set the process up as the programs do that are priced by what it measures.

    With several ranks it joins their group, of the device's backend, by a file at ``store``.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    share_cores(rank, ranks)
    torch.manual_seed(rank)
    if ranks > 1:
        dist.init_process_group(
            device.backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timeout,
            device_id=None if device.kind == "cpu" else device.place,
        )
