"""Where a model can be cut into pipeline stages: what crosses each end of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from autoplan.ir.graph import Graph, Tensor

__all__ = ["Cut", "cut_candidates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The end between two blocks. ``tensors`` are what a stage there receives for a microbatch.

    They are named as in the block before and include those that skip over blocks. ``size`` is
    their bytes; backward sends as many the other way, as far as they carry a gradient.
    """

    position: int
    before: str
    after: str
    tensors: tuple[Tensor, ...]
    size: int

    def __str__(self) -> str:
        return f"{self.before} | {self.after}: {len(self.tensors)} tensors, {self.size} bytes"


def cut_candidates(graph: Graph) -> tuple[Cut, ...]:
    """Every end between two blocks in order; ``position`` is the number of blocks before it."""
    cuts = []
    for position, (before, after) in enumerate(pairwise(graph.instances), start=1):
        tensors = graph.handed_on(before)
        cuts.append(
            Cut(
                position=position,
                before=before.name,
                after=after.name,
                tensors=tensors,
                size=sum(tensor.size for tensor in tensors),
            )
        )
    return tuple(cuts)
