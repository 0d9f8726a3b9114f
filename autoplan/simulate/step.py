"""A training step from the costs of its stages: the events of every rank."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.schedules import order, stages_of
from autoplan.simulate.costs import DataParallel, StageCost, Tail
from autoplan.simulate.engine import RankOutcome, run_ranks
from autoplan.simulate.program import jobs_of_rank
from autoplan.simulate.timeline import COMPUTE, DATA, MODEL, Record, Timeline

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
    makespan = _finish(outcomes, tails or [Tail()] * ranks, records)
    return Timeline(
        records=tuple(records),
        busy=tuple(outcome.busy for outcome in outcomes),
        awaiting_input=tuple(outcome.awaiting_input for outcome in outcomes),
        awaiting_gather=tuple(outcome.awaiting_gather for outcome in outcomes),
        awaiting_reduction=tuple(outcome.awaiting_reduction for outcome in outcomes),
        awaiting_ranks=tuple(outcome.awaiting_ranks for outcome in outcomes),
        end_of_stage=tuple(
            outcomes[rank].end_of_stage[stage] for stage, rank in enumerate(rank_of)
        ),
        makespan=makespan,
    )


def _finish(outcomes: Sequence[RankOutcome], tails: Sequence[Tail], records: list[Record]) -> float:
    """Add what follows the last gradients; seconds until the last rank is done."""
    synced = max(
        outcome.end + tail.collectives for outcome, tail in zip(outcomes, tails, strict=True)
    )
    makespan = synced + max(tail.optimizer + tail.publish for tail in tails)
    for rank, (outcome, tail) in enumerate(zip(outcomes, tails, strict=True)):
        ready = outcome.end + tail.collectives
        updated = synced + tail.optimizer
        done = updated + tail.publish
        for stream, start, end, verb in (
            (MODEL, outcome.end, ready, "gradient collectives"),
            (COMPUTE, synced, updated, "optimizer"),
            (DATA, updated, done, "gather updated parameters"),
        ):
            if end > start:
                records.append((rank, stream, start, end, verb, None, -1))
        outcome.busy += tail.collectives + tail.optimizer + tail.publish
        outcome.awaiting_ranks = (synced - ready) + (makespan - done)
    return makespan
