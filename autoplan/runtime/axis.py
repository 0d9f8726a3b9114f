"""A mesh axis as a rank sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

__all__ = ["SINGLE", "Axis"]


@dataclass(frozen=True, slots=True)
class Axis:
    """The group of one mesh axis, this rank's coordinate in it, and its degree.

    On an axis of size 1 every collective is the identity and ``group`` may be None.
    """

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} does not lie on an axis of size {self.size}")
        if self.size > 1 and self.group is None:
            raise ValueError(f"an axis of size {self.size} needs a process group")


SINGLE = Axis(group=None, rank=0, size=1)
