"""Pipeline schedules: the order of actions of each rank, and what it holds in flight.

A schedule is a module with ``NAME``, ``check``, ``stages_of`` and ``order``, listed below; where
the most that a rank holds is a simple formula, it has ``in_flight`` as well. All seven schedules
of ``torch.distributed.pipelining`` are here, under torch's names in lower case.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

from autoplan.errors import UsageError
from autoplan.schedules import (
    dualpipev,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    zbv_zero_bubble,
)
from autoplan.schedules.action import Action, ActionKind, Overlapped, Step, single_actions
from autoplan.schedules.flight import (
    flights_of,
    held_by_all,
    held_together,
    most_held,
    most_in_flight,
    most_pending,
)

__all__ = [
    "ONE_STAGE",
    "SCHEDULES",
    "SPLIT",
    "Action",
    "ActionKind",
    "Overlapped",
    "Step",
    "check",
    "held_by_stages",
    "held_moments",
    "in_flight",
    "is_legal",
    "most_held",
    "most_in_flight",
    "most_pending",
    "order",
    "ranks_of_stages",
    "single_actions",
    "stage_flights",
    "stages_of",
]

_MODULES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        gpipe,
        one_f_one_b,
        interleaved_1f1b,
        looped_bfs,
        interleaved_zero_bubble,
        zbv_zero_bubble,
        dualpipev,
    )
}

SCHEDULES = tuple(_MODULES)
"""Names of the schedules."""

ONE_STAGE = (gpipe.NAME, one_f_one_b.NAME)
"""Those of one stage a rank; torch runs all others by lists of actions."""

SPLIT = (interleaved_zero_bubble.NAME, zbv_zero_bubble.NAME, dualpipev.NAME)
"""Those that run some backwards in two parts."""


@lru_cache(maxsize=64)
def order(
    schedule: str, rank: int, ranks: int, microbatches: int, stages_per_rank: int = 1
) -> tuple[Step, ...]:
    """Actions of a rank in the order it runs them.

    >>> " ".join(map(str, order("1f1b", 1, 3, 3)))
    '1F0 1F1 1B0 1F2 1B1 1B2'
    >>> " ".join(map(str, order("zbvzerobubble", 0, 1, 2, 2)))
    '0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1'
    """
    steps: tuple[Step, ...] = _module(schedule).order(rank, ranks, stages_per_rank, microbatches)
    return steps


def check(schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1) -> None:
    """Refuse numbers of ranks, microbatches and stages that torch's schedule refuses."""
    _module(schedule).check(ranks, stages_per_rank, microbatches)


def is_legal(schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1) -> bool:
    """Whether torch's schedule takes those numbers.

    >>> is_legal("interleaved1f1b", 4, 10, 2), is_legal("interleaved1f1b", 4, 9, 2)
    (True, False)
    """
    try:
        check(schedule, ranks, microbatches, stages_per_rank)
    except UsageError:
        return False
    return True


def stages_of(schedule: str, rank: int, ranks: int, stages_per_rank: int = 1) -> tuple[int, ...]:
    """Stages that a rank holds.

    >>> stages_of("dualpipev", 0, 4, 2), stages_of("loopedbfs", 0, 4, 2)
    ((0, 7), (0, 4))
    """
    stages: tuple[int, ...] = _module(schedule).stages_of(rank, ranks, stages_per_rank)
    return stages


@lru_cache(maxsize=4096)
def in_flight(
    schedule: str, rank: int, ranks: int, microbatches: int, stages_per_rank: int = 1
) -> int:
    """Most pairs of stage and microbatch whose activations a rank holds at once.

    ``autoplan.schedules.flight`` says when they are freed.

    >>> [in_flight("1f1b", stage, 4, 8) for stage in range(4)]
    [4, 3, 2, 1]
    """
    module = _module(schedule)
    if hasattr(module, "in_flight"):
        most: int = module.in_flight(rank, ranks, stages_per_rank, microbatches)
        return most
    return most_in_flight(order(schedule, rank, ranks, microbatches, stages_per_rank))


@lru_cache(maxsize=1024)
def ranks_of_stages(schedule: str, ranks: int, stages_per_rank: int = 1) -> tuple[int, ...]:
    """Rank of each stage; that of the first ``ranks`` stages is their own number.

    >>> ranks_of_stages("loopedbfs", 2, 2), ranks_of_stages("dualpipev", 2, 2)
    ((0, 1, 0, 1), (0, 1, 1, 0))
    """
    rank_of = dict.fromkeys(range(ranks * stages_per_rank), 0)
    for rank in range(ranks):
        rank_of |= dict.fromkeys(stages_of(schedule, rank, ranks, stages_per_rank), rank)
    return tuple(rank_of.values())


@lru_cache(maxsize=4096)
def stage_flights(
    schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1
) -> tuple[int, ...]:
    """Most microbatches whose activations each stage holds at once.

    >>> stage_flights("interleaved1f1b", 2, 4, 2)
    (4, 3, 2, 1)
    """
    if stages_per_rank == 1:
        return tuple(in_flight(schedule, rank, ranks, microbatches) for rank in range(ranks))
    found: dict[int, int] = {}
    for rank in range(ranks):
        found |= flights_of(order(schedule, rank, ranks, microbatches, stages_per_rank))
    return tuple(found[stage] for stage in range(ranks * stages_per_rank))


@lru_cache(maxsize=4096)
def held_by_stages(
    schedule: str, rank: int, ranks: int, microbatches: int, stages_per_rank: int = 1
) -> int:
    """Most microbatches that all stages of a rank hold at one moment."""
    if stages_per_rank == 1:
        return in_flight(schedule, rank, ranks, microbatches)
    return held_by_all(order(schedule, rank, ranks, microbatches, stages_per_rank))


@lru_cache(maxsize=4096)
def held_moments(
    schedule: str, rank: int, ranks: int, microbatches: int, stages_per_rank: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Microbatches that each stage of a rank holds, at the moments at which they are most.

    >>> held_moments("1f1b", 1, 4, 8), held_moments("interleaved1f1b", 0, 2, 4, 2)
    (((3,),), ((3, 2), (4, 1)))
    """
    if stages_per_rank == 1:
        return ((in_flight(schedule, rank, ranks, microbatches),),)
    stages = stages_of(schedule, rank, ranks, stages_per_rank)
    moments = held_together(order(schedule, rank, ranks, microbatches, stages_per_rank))
    return tuple(tuple(held[stage] for stage in stages) for held in moments)


def _module(schedule: str) -> ModuleType:
    if schedule not in _MODULES:
        raise UsageError(f"unknown schedule {schedule!r}", hint=f"one of: {', '.join(SCHEDULES)}")
    return _MODULES[schedule]
