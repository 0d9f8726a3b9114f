"""Copies of a block with different choices: what a memory limit makes optimal.

Points of one frame are mixed: the cut gives each copy of a class the recompute level and the
strategies of one of them. Copies that agree stay one class of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

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
    Appraisal,
    Found,
    Overflow,
    Priced,
    better,
    memories_of,
)
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration
from autoplan.solver.sweep import Ranges
from autoplan.solver.variants import pick_points

__all__ = ["Mixture"]

_TRIES = 6
_UNLIMITED = 2**60
_MOST_MOVES = 8
_NEAR = 5e-3  # of the limit: room that is not worth another cut


class Mixture:
    """Prices of a configuration whose blocks each take one of the points of a frame.

    What no memory limit changes is worked out once for all limits. Where ``stages`` are given,
    only what their blocks take is chosen.
    """

    def __init__(
        self,
        graph: Graph,
        configuration: Configuration,
        points: Sequence[ModelPoint],
        cluster: Cluster,
        *,
        update: UpdateRule,
        stages: Ranges = (),
    ) -> None:
        self._graph, self._configuration, self._points = graph, configuration, tuple(points)
        self._cluster, self._update = cluster, update
        self._stages = stages
        self._flights = configuration.flights()
        self._cuts: dict[tuple[int, tuple[int, ...]], StageCut] = {}
        self._appraisals: dict[tuple[Ranges, tuple[int, ...]], Appraisal] = {}

    def best(
        self, memory_limit: int, *, enough: float = math.inf, only_fastest: bool = False
    ) -> Found:
        """Best price within ``memory_limit`` bytes a rank, or that none is below ``enough``.

        The cut that is fastest whatever it holds may fit. If not, a cut adds up each block's memory
        by itself, where the price also has what blocks share. So the cut is made again, with the
        difference as what each stage holds anyway, until that settles. ``only_fastest`` leaves it
        at the first. Stages of one rank share its memory in the proportion of the last cut.
        """
        held = self._held
        best: Found | None = None
        best_cut: StageCut | None = None
        last: StageCut | None = None
        limit = _UNLIMITED
        for _ in range(1 if only_fastest else _TRIES):
            cut = self._cut(limit, held)
            if last is not None and (cut.ranges, cut.choices) == (last.ranges, last.choices):
                break
            found = self._price(cut, memory_limit, enough)
            best = found if best is None else better(best, found)
            best_cut = cut if best is found else best_cut
            last = cut
            corrected = _corrected(self._configuration, cut, held, memories_of(found), memory_limit)
            if not isinstance(found, Overflow):
                gained = max(old - new for new, old in zip(corrected, held, strict=True))
                if limit == _UNLIMITED or gained <= _NEAR * memory_limit or enough <= 0.0:
                    break
            held, limit = corrected, memory_limit
        assert best is not None and best_cut is not None
        one_stage = self._configuration.stages == 1
        if isinstance(best, Priced) and one_stage and len(self._points) > 1 and limit != _UNLIMITED:
            return self._polished(best, best_cut, memory_limit)
        return best

    @cached_property
    def _held(self) -> tuple[int, ...]:
        """Bytes that each stage holds whatever its blocks are."""
        resident = resident_bytes(self._graph, self._configuration)
        _, shared = shared_costs(self._graph, self._cluster)
        return tuple(resident + shared * flight for flight in self._flights)

    @cached_property
    def _turns(self) -> int:
        one = self._configuration
        return turns_of(one.mesh.pp, one.virtual_stages, one.microbatches)

    @cached_property
    def _items(self) -> list[ChainItem]:
        settings = self._configuration.memory_settings(
            dtype_size(self._graph.dtype),
            update=self._update,
            host=self._cluster.accelerator.synchronous,
        )
        parts = [
            pieces(self._graph, self._configuration, point, self._cluster) for point in self._points
        ]
        sends = send_times(self._graph, self._configuration, self._points[0], self._cluster)
        return chain_items(self._graph, self._points, parts, settings, sends)

    def _cut(self, limit: int, held: tuple[int, ...]) -> StageCut:
        if (limit, held) not in self._cuts:
            self._cuts[limit, held] = cut_stages(
                self._items,
                stages=self._configuration.stages,
                microbatches=self._configuration.microbatches,
                in_flight=self._flights,
                memory_limit=limit,
                resident=held,
                turns=self._turns,
                ranges=self._stages,
            )
        return self._cuts[limit, held]

    def _price(self, cut: StageCut, memory_limit: int, enough: float) -> Found:
        key = (cut.ranges, cut.choices)
        if key not in self._appraisals:
            variant, point = pick_points(self._graph, self._points, cut.choices)
            self._appraisals[key] = Appraisal(
                variant, self._configuration, point, self._cluster, update=self._update, cut=cut
            )
        return self._appraisals[key].found(memory_limit=memory_limit, enough=enough)

    def _polished(self, best: Priced, cut: StageCut, memory_limit: int) -> Priced:
        """The best after single blocks of the only stage are made faster, where that helps.

        What blocks share, and which of them holds most when, is only in the price.
        """
        for _ in range(_MOST_MOVES):
            for position, choice in _faster(cut, self._items):
                choices = (*cut.choices[:position], choice, *cut.choices[position + 1 :])
                moved = replace(cut, choices=choices)
                found = self._price(moved, memory_limit, best.step_time)
                if isinstance(found, Priced) and found.step_time < best.step_time:
                    best, cut = found, moved
                    break
            else:
                break
        return best


def _corrected(
    configuration: Configuration,
    cut: StageCut,
    held: Sequence[int],
    memories: Sequence[StageMemory],
    memory_limit: int,
) -> tuple[int, ...]:
    """Bytes that each stage holds anyway, so that those of a rank add up to what it really does."""
    ranks = configuration.ranks_of_stages
    own = [peak - before for peak, before in zip(cut.peaks, held, strict=True)]
    total = [0] * configuration.mesh.pp
    for rank, size in zip(ranks, own, strict=True):
        total[rank] += size
    room = [
        memory_limit - (memory.peak - used) for memory, used in zip(memories, total, strict=True)
    ]
    return tuple(
        memory_limit - room[rank] * size // max(1, total[rank])
        for rank, size in zip(ranks, own, strict=True)
    )


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
