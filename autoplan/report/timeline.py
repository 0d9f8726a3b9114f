"""Where the time of each pipeline rank goes, from the simulated step of a plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from autoplan.ir.plan import Plan
from autoplan.simulate import timeline_of_plan

__all__ = ["StageWaits", "stage_waits", "timeline_summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWaits:
    """Seconds of a rank that sum to the step: working, and waiting for what is named."""

    busy: float
    messages: float
    gathers: float
    reductions: float
    other_ranks: float


def stage_waits(plan: Plan) -> tuple[StageWaits, ...]:
    """For each pipeline rank, where its step goes; empty if the step was not simulated."""
    timeline = timeline_of_plan(plan)
    if timeline is None:
        return ()
    return tuple(
        StageWaits(
            busy=busy, messages=messages, gathers=gathers, reductions=reductions, other_ranks=ranks
        )
        for busy, messages, gathers, reductions, ranks in zip(
            timeline.busy,
            timeline.awaiting_message,
            timeline.awaiting_gather,
            timeline.awaiting_reduction,
            timeline.awaiting_ranks,
            strict=True,
        )
    )


def timeline_summary(plan: Plan) -> list[dict[str, float]] | None:
    """Part of the document for ``--json``: seconds by pipeline rank."""
    return [asdict(waits) for waits in stage_waits(plan)] or None
