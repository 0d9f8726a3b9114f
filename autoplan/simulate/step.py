"""A training step from the costs of its stages: the events of every rank."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.schedules import order, stages_of
from autoplan.simulate.costs import DataParallel, StageCost, Tail
from autoplan.simulate.engine import RankOutcome, run_ranks
from autoplan.simulate.program import jobs_of_rank
from autoplan.simulate.timeline import COMPUTE, MODEL, Record, Timeline

__all__ = ["simulate_step"]


def simulate_step(
    schedule: str,
    stages: Sequence[StageCost],
    *,
    ranks: int,
    microbatches: int,
    data: DataParallel | None = None,
    tails: Sequence[Tail] = (),
) -> Timeline:
    """Timeline of one step of a pipeline; ``stages`` are all, in the order of the model.

    Without a pipeline, that is ``1f1b`` with one rank: forward and backward in turn. ``tails``
    is what follows, by rank.
    """
    assert len(stages) % ranks == 0 and len(tails) in (0, ranks)
    per_rank = len(stages) // ranks
    data = data or DataParallel()
    rank_of = [0] * len(stages)
    for rank in range(ranks):
        for stage in stages_of(schedule, rank, ranks, per_rank):
            rank_of[stage] = rank
    programs = [
        list(
            jobs_of_rank(
                order(schedule, rank, ranks, microbatches, per_rank),
                stages,
                rank_of,
                microbatches,
                data,
            )
        )
        for rank in range(ranks)
    ]
    outcomes, records = run_ranks(programs, 2 * len(stages) * microbatches, data)
    makespan = max(outcome.end for outcome in outcomes)
    if tails:
        makespan = _finish(outcomes, tails, records)
    return Timeline(
        records=tuple(records),
        busy=tuple(outcome.busy for outcome in outcomes),
        awaiting_input=tuple(outcome.awaiting_input for outcome in outcomes),
        awaiting_gather=tuple(outcome.awaiting_gather for outcome in outcomes),
        end_of_rank=tuple(outcome.end for outcome in outcomes),
        end_of_stage=tuple(
            outcomes[rank].end_of_stage[stage] for stage, rank in enumerate(rank_of)
        ),
        makespan=makespan,
    )


def _finish(outcomes: Sequence[RankOutcome], tails: Sequence[Tail], records: list[Record]) -> float:
    """Add what follows the last gradients; seconds until the last rank's update is done."""
    ends = [outcome.end + tail.collectives for outcome, tail in zip(outcomes, tails, strict=True)]
    synced = max(ends)
    for rank, (outcome, tail) in enumerate(zip(outcomes, tails, strict=True)):
        if tail.collectives:
            records.append((rank, MODEL, outcome.end, ends[rank], "gradient collectives", None, -1))
        if tail.optimizer:
            end = synced + tail.optimizer
            records.append((rank, COMPUTE, synced, end, "optimizer", None, -1))
            outcome.busy += tail.optimizer
        outcome.busy += tail.collectives
    return synced + max(tail.optimizer for tail in tails)
