"""Copies of a block with different choices: what a memory limit makes optimal.

Points of one frame are mixed: the cut gives each copy of a class the recompute level and the
strategies of one of them. Copies that agree stay one class of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.solver.between import send_times
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.inter import StageCut, cut_stages
from autoplan.solver.pieces import chain_items, pieces
from autoplan.solver.pricing import (
    Found,
    Overflow,
    better,
    flights_of,
    memories_of,
    price,
    resident_bytes,
)
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration
from autoplan.solver.variants import pick_points

__all__ = ["mix_points"]

_TRIES = 6
_NEAR = 5e-3  # of the limit: room that is not worth another cut


def mix_points(
    graph: Graph,
    configuration: Configuration,
    points: Sequence[ModelPoint],
    cluster: Cluster,
    *,
    update: UpdateRule,
    memory_limit: int,
    enough: float = math.inf,
) -> Found:
    """Best price of a configuration whose blocks each take one of the points of a frame.

    A cut adds up each block's memory by itself; the price also has what blocks share. So the cut
    is made again, with the difference as what each stage holds anyway, until that settles.
    """
    settings = configuration.memory_settings(
        dtype_size(graph.dtype), update=update, host=cluster.accelerator.synchronous
    )
    parts = [pieces(graph, configuration, point, cluster) for point in points]
    sends = send_times(graph, configuration, points[0], cluster)
    items = chain_items(graph, points, parts, settings, sends)
    flights = flights_of(configuration)
    _, shared = shared_costs(graph, cluster)
    held = [resident_bytes(graph, configuration) + shared * flight for flight in flights]
    best: Found | None = None
    last: StageCut | None = None
    for _ in range(_TRIES):
        cut = cut_stages(
            items,
            stages=configuration.mesh.pp,
            microbatches=configuration.microbatches,
            in_flight=flights,
            memory_limit=memory_limit,
            resident=held,
        )
        if last is not None and (cut.ranges, cut.choices) == (last.ranges, last.choices):
            break
        variant, point = pick_points(graph, points, cut.choices)
        found = price(
            variant,
            configuration,
            point,
            cluster,
            update=update,
            memory_limit=memory_limit,
            cut=cut,
            enough=enough,
        )
        best = found if best is None else better(best, found)
        corrected = [
            before + stage.peak - peak
            for before, stage, peak in zip(held, memories_of(found), cut.peaks, strict=True)
        ]
        if not isinstance(found, Overflow):
            gained = max(old - new for new, old in zip(corrected, held, strict=True))
            if gained <= _NEAR * memory_limit or _is_free(cut) or enough <= 0.0:
                break
        held, last = corrected, cut
    assert best is not None
    return best


def _is_free(cut: StageCut) -> bool:
    """Whether more memory can't help: one stage, of the first and fastest choices."""
    return len(cut.ranges) == 1 and not any(cut.choices)
