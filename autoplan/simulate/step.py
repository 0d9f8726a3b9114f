"""A training step from the costs of its stages: the events of every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autoplan.errors import UsageError
from autoplan.schedules import order, ranks_of_stages
from autoplan.simulate.costs import DataParallel, Messages, StageCost, Tail
from autoplan.simulate.engine import Mail, RankRun, beside, run_ranks
from autoplan.simulate.program import Job, jobs_of_rank
from autoplan.simulate.rendezvous import Transfers, in_batches, in_order
from autoplan.simulate.timeline import COMPUTE, DATA, MODEL, Record, Timeline

__all__ = ["jobs_of_step", "run_jobs", "simulate_step"]


def simulate_step(
    schedule: str,
    stages: Sequence[StageCost],
    *,
    ranks: int,
    microbatches: int,
    data: DataParallel | None = None,
    tails: Sequence[Tail] = (),
    messages: Messages = Messages.BESIDE,
) -> Timeline:
    """Timeline of one step of a pipeline; ``stages`` are all, in the order of the model.

    Without a pipeline, that is ``1f1b`` with one rank: forward and backward in turn. ``tails``
    is what follows, by rank. ``messages`` tells whether ranks wait while results travel.
    """
    assert len(stages) % ranks == 0 and len(tails) in (0, ranks)
    data = data or DataParallel()
    jobs, rank_of = jobs_of_step(schedule, stages, ranks, microbatches, data)
    return run_jobs(jobs, rank_of, schedule, data=data, tails=tails, messages=messages)


def jobs_of_step(
    schedule: str,
    stages: Sequence[StageCost],
    ranks: int,
    microbatches: int,
    data: DataParallel,
) -> tuple[list[list[Job]], list[int]]:
    """Jobs of each rank in the order it runs them, and the rank of each stage."""
    per_rank = len(stages) // ranks
    rank_of = list(ranks_of_stages(schedule, ranks, per_rank))
    orders = (order(schedule, rank, ranks, microbatches, per_rank) for rank in range(ranks))
    return [list(jobs_of_rank(o, stages, rank_of, microbatches, data)) for o in orders], rank_of


def run_jobs(
    jobs: Sequence[Sequence[Job]],
    rank_of: Sequence[int],
    schedule: str,
    *,
    data: DataParallel,
    tails: Sequence[Tail] = (),
    messages: Messages = Messages.BESIDE,
) -> Timeline:
    """Timeline of the jobs of all ranks of a schedule."""
    records: list[Record] = []
    runs = [RankRun(rank, own, data, records) for rank, own in enumerate(jobs)]
    numbers = [n for own in jobs for job in own for n in job.awaits]
    mail = Mail.empty(max(numbers, default=-1) + 1)
    if messages is Messages.BESIDE:
        run_ranks([beside(run, mail) for run in runs], mail)
    else:
        protocol = _protocol(schedule)
        transfers = Transfers(mail)
        run_ranks([protocol(run, transfers) for run in runs], mail)
    makespan = _finish(runs, tails or [Tail()] * len(runs), records)
    return Timeline(
        records=tuple(records),
        busy=tuple(run.busy for run in runs),
        awaiting_message=tuple(run.awaiting_message for run in runs),
        awaiting_gather=tuple(run.awaiting_gather for run in runs),
        awaiting_reduction=tuple(run.awaiting_reduction for run in runs),
        awaiting_ranks=tuple(run.awaiting_ranks for run in runs),
        end_of_stage=tuple(runs[rank].end_of_stage[stage] for stage, rank in enumerate(rank_of)),
        makespan=makespan,
    )


def _protocol(schedule: str) -> Callable[[RankRun, Transfers], Iterator[int]]:
    protocols = {"gpipe": in_order, "1f1b": in_batches}
    if schedule not in protocols:
        raise UsageError(
            f"{schedule} does not wait for messages as they are sent",
            hint=f"torch does so in {' and '.join(protocols)}: use Messages.BESIDE here",
        )
    return protocols[schedule]


def _finish(runs: Sequence[RankRun], tails: Sequence[Tail], records: list[Record]) -> float:
    """Add what follows the last gradients; seconds until the last rank is done."""
    synced = max(run.end + tail.collectives for run, tail in zip(runs, tails, strict=True))
    makespan = synced + max(tail.optimizer + tail.publish for tail in tails)
    for run, tail in zip(runs, tails, strict=True):
        ready = run.end + tail.collectives
        updated = synced + tail.optimizer
        done = updated + tail.publish
        for stream, start, end, verb in (
            (MODEL, run.end, ready, "gradient collectives"),
            (COMPUTE, synced, updated, "optimizer"),
            (DATA, updated, done, "gather updated parameters"),
        ):
            if end > start:
                records.append((run.rank, stream, start, end, verb, None, -1))
        run.busy += tail.collectives + tail.optimizer + tail.publish
        run.awaiting_ranks = (synced - ready) + (makespan - done)
    return makespan
