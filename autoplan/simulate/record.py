"""Costs of a whole step, and their record in a plan file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from autoplan.ir.memo import by_identity
from autoplan.ir.plan import Plan, StageCostRecord, StepRecord, UnitCostRecord
from autoplan.schedules import ActionKind
from autoplan.simulate.costs import (
    DataParallel,
    Gathering,
    Messages,
    Reduction,
    StageCost,
    Tail,
    UnitCost,
    Work,
    work_of,
)
from autoplan.simulate.step import simulate_step
from autoplan.simulate.timeline import Timeline

__all__ = ["StepCosts", "step_record", "timeline_of_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """All that a step is simulated from; ``tails`` are by rank.

    Of backwards in two parts, each takes half of the whole.
    """

    schedule: str
    microbatches: int
    stages: tuple[StageCost, ...]
    tails: tuple[Tail, ...]
    data: DataParallel
    messages: Messages

    def timeline(self) -> Timeline:
        """The step, event by event."""
        return simulate_step(
            self.schedule,
            self.stages,
            ranks=len(self.tails),
            microbatches=self.microbatches,
            data=self.data,
            tails=self.tails,
            messages=self.messages,
        )


def step_record(costs: StepCosts) -> StepRecord:
    """Record of those costs; equal units are stored once."""
    seen: dict[UnitCostRecord, int] = {}
    stages = []
    later = [Tail()] * (len(costs.stages) - len(costs.tails))
    for stage, tail in zip(costs.stages, [*costs.tails, *later], strict=True):
        places = [seen.setdefault(_unit_record(unit), len(seen)) for unit in stage.units]
        stages.append(
            StageCostRecord(
                units=tuple((place, len(list(run))) for place, run in groupby(places)),
                send_output=stage.send_output,
                send_gradient=stage.send_gradient,
                collectives=tail.collectives,
                optimizer=tail.optimizer,
                publish=tail.publish,
            )
        )
    return StepRecord.model_validate(
        {
            "units": tuple(seen),
            "stages": tuple(stages),
            "gathering": costs.data.gathering.value,
            "reduction": costs.data.reduction.value,
            "messages": costs.messages.value,
            "joined": costs.data.joined,
            "blocking": costs.data.blocking,
            "compute_slow_down": costs.data.compute_slow_down,
            "network_slow_down": costs.data.network_slow_down,
        }
    )


@by_identity(4)
def timeline_of_plan(plan: Plan) -> Timeline | None:
    """Timeline of a plan's step, from its record; None if it has none."""
    record = plan.step
    if record is None:
        return None
    units = [_unit_cost(unit) for unit in record.units]
    return StepCosts(
        schedule="1f1b" if plan.pipeline.schedule == "none" else plan.pipeline.schedule,
        microbatches=plan.pipeline.microbatches,
        stages=tuple(_stage_cost(stage, units) for stage in record.stages),
        tails=tuple(
            Tail(collectives=stage.collectives, optimizer=stage.optimizer, publish=stage.publish)
            for stage in record.stages[: plan.mesh.pp]
        ),
        data=DataParallel(
            gathering=Gathering(record.gathering),
            reduction=Reduction(record.reduction),
            joined=record.joined,
            blocking=record.blocking,
            compute_slow_down=record.compute_slow_down,
            network_slow_down=record.network_slow_down,
        ),
        messages=Messages(record.messages),
    ).timeline()


def _unit_record(unit: UnitCost) -> UnitCostRecord:
    forward, backward = unit.work[ActionKind.FORWARD], unit.work[ActionKind.BACKWARD]
    return UnitCostRecord(
        forward=(forward.compute, forward.exposed),
        backward=(backward.compute, backward.exposed),
        gather=unit.gather,
        reduce=unit.reduce,
        reduced=unit.reduced,
    )


def _unit_cost(record: UnitCostRecord) -> UnitCost:
    work = work_of(Work(*record.forward), Work(*record.backward))
    return UnitCost(work=work, gather=record.gather, reduce=record.reduce, reduced=record.reduced)


def _stage_cost(record: StageCostRecord, units: Sequence[UnitCost]) -> StageCost:
    return StageCost(
        units=tuple(units[place] for place, count in record.units for _ in range(count)),
        send_output=record.send_output,
        send_gradient=record.send_gradient,
    )
