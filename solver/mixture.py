"""Copies of a block with different choices: what a memory limit makes optimal.

Points of one frame are mixed: the cut gives each copy of a class the recompute level and the
strategies of one of them. Copies that agree stay one class of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from autoplan.costs.memory import StageMemory
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.solver.between import send_times
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.chain import ChainItem
from autoplan.solver.inter import StageCut, cut_stages, turns_of
from autoplan.solver.memories import resident_bytes
from autoplan.solver.pieces import chain_items, pieces
from autoplan.solver.pricing import (
    Found,
    Overflow,
    Priced,
    better,
    memories_of,
    price,
)
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration
from autoplan.solver.sweep import Ranges
from autoplan.solver.variants import pick_points

__all__ = ["mix_points"]

_TRIES = 6
_UNLIMITED = 2**60
_MOST_MOVES = 8
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
    only_fastest: bool = False,
    stages: Ranges = (),
) -> Found:
    """Best price of a configuration whose blocks each take one of the points of a frame.

    The cut that is fastest whatever it holds may fit. If not, a cut adds up each block's memory
    by itself, where the price also has what blocks share. So the cut is made again, with the
    difference as what each stage holds anyway, until that settles. ``only_fastest`` leaves it at
    the first. Stages of one rank share its memory in the proportion in which the last cut used it.
    Where ``stages`` are given, only what their blocks take is chosen.
    """
    settings = configuration.memory_settings(
        dtype_size(graph.dtype), update=update, host=cluster.accelerator.synchronous
    )
    parts = [pieces(graph, configuration, point, cluster) for point in points]
    sends = send_times(graph, configuration, points[0], cluster)
    items = chain_items(graph, points, parts, settings, sends)
    flights = configuration.flights()
    _, shared = shared_costs(graph, cluster)

    def priced(cut: StageCut, enough: float) -> Found:
        variant, point = pick_points(graph, points, cut.choices)
        return price(
            variant,
            configuration,
            point,
            cluster,
            update=update,
            memory_limit=memory_limit,
            cut=cut,
            enough=enough,
        )

    held = [resident_bytes(graph, configuration) + shared * flight for flight in flights]
    turns = turns_of(
        configuration.mesh.pp, configuration.virtual_stages, configuration.microbatches
    )
    best: Found | None = None
    best_cut: StageCut | None = None
    last: StageCut | None = None
    limit = _UNLIMITED
    for _ in range(1 if only_fastest else _TRIES):
        cut = cut_stages(
            items,
            stages=configuration.stages,
            microbatches=configuration.microbatches,
            in_flight=flights,
            memory_limit=limit,
            resident=held,
            turns=turns,
            ranges=stages,
        )
        if last is not None and (cut.ranges, cut.choices) == (last.ranges, last.choices):
            break
        found = priced(cut, enough)
        best = found if best is None else better(best, found)
        best_cut = cut if best is found else best_cut
        last = cut
        corrected = _corrected(configuration, cut, held, memories_of(found), memory_limit)
        if not isinstance(found, Overflow):
            gained = max(old - new for new, old in zip(corrected, held, strict=True))
            if limit == _UNLIMITED or gained <= _NEAR * memory_limit or enough <= 0.0:
                break
        held, limit = corrected, memory_limit
    assert best is not None and best_cut is not None
    if isinstance(best, Priced) and len(cut.ranges) == 1 < len(points) and limit != _UNLIMITED:
        return _polished(best, best_cut, items, priced)
    return best


def _corrected(
    configuration: Configuration,
    cut: StageCut,
    held: Sequence[int],
    memories: Sequence[StageMemory],
    memory_limit: int,
) -> list[int]:
    """Bytes that each stage holds anyway, so that those of a rank add up to what it really does."""
    ranks = configuration.ranks_of_stages
    own = [peak - before for peak, before in zip(cut.peaks, held, strict=True)]
    total = [0] * configuration.mesh.pp
    for rank, size in zip(ranks, own, strict=True):
        total[rank] += size
    room = [
        memory_limit - (memory.peak - used) for memory, used in zip(memories, total, strict=True)
    ]
    return [
        memory_limit - room[rank] * size // max(1, total[rank])
        for rank, size in zip(ranks, own, strict=True)
    ]


def _polished(
    best: Priced,
    cut: StageCut,
    items: Sequence[ChainItem],
    priced: Callable[[StageCut, float], Found],
) -> Priced:
    """The best after single blocks of the only stage are made faster, where that fits and helps.

    What blocks share, and which of them holds most when, is only in the price.
    """
    for _ in range(_MOST_MOVES):
        for position, choice in _faster(cut, items):
            choices = (*cut.choices[:position], choice, *cut.choices[position + 1 :])
            moved = replace(cut, choices=choices)
            found = priced(moved, best.step_time)
            if isinstance(found, Priced) and found.step_time < best.step_time:
                best, cut = found, moved
                break
        else:
            break
    return best


def _faster(cut: StageCut, items: Sequence[ChainItem]) -> list[tuple[int, int]]:
    """Blocks and faster points for them, most seconds first; of those alike the first and last."""
    moves: dict[tuple[object, ...], tuple[float, int, int]] = {}
    for stage, (first, last) in enumerate(cut.ranges):
        for position in range(first, last):
            points, chosen = items[position].points, cut.choices[position]
            for index, point in enumerate(points):
                gain = points[chosen].time - point.time
                if gain > 0.0:
                    move = (-gain, position, index)
                    moves.setdefault((stage, points, chosen, index, "first"), move)
                    moves[stage, points, chosen, index, "last"] = move
    return [(position, index) for _, position, index in sorted(set(moves.values()))]
