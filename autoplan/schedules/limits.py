"""What the schedules ask of the numbers of ranks, stages and microbatches, said with them."""

from __future__ import annotations

from autoplan.errors import UsageError

__all__ = ["need_microbatches", "need_stages_per_rank", "round_size"]


def need_stages_per_rank(schedule: str, needed: int, stages_per_rank: int) -> None:
    """Refuse any other number of stages on a rank."""
    if stages_per_rank != needed:
        raise UsageError(
            f"{schedule} runs {needed} stage{'s' if needed > 1 else ''} on a rank, "
            f"not {stages_per_rank}",
            hint=f"set stages per rank to {needed}, or choose a schedule that loops",
        )


def need_microbatches(schedule: str, needed: int, microbatches: int) -> None:
    """Refuse fewer microbatches."""
    if microbatches < needed:
        raise UsageError(
            f"{schedule} needs at least {needed} microbatches a step, not {microbatches}",
            hint=f"make microbatches smaller so that there are {needed}, or use fewer ranks",
        )


def round_size(schedule: str, ranks: int, microbatches: int) -> int:
    """Microbatches that pass a rank's stage before its next stage takes over.

    A step has as many rounds as the microbatches fill the ranks, all of one size.

    >>> round_size("interleaved1f1b", 4, 10)
    5
    """
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        below = microbatches - microbatches % rounds
        raise UsageError(
            f"{schedule} runs {microbatches} microbatches on {ranks} ranks in {rounds} rounds, "
            f"and {microbatches} is not a multiple of {rounds}",
            hint=f"use {below} or {below + rounds} microbatches; multiples of {ranks} always work",
        )
    return microbatches // rounds
