"""The step of a priced configuration, event by event.

The search compares configurations by closed forms, which take a stage as a whole; the step time
of what is shown is that of the simulation, in which every block has its own collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.costs.step import BlockTime, unit_time
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.plan import MAX_EVENTS
from autoplan.schedules import ActionKind
from autoplan.simulate import (
    DataParallel,
    Reduction,
    StageCost,
    StepCosts,
    Tail,
    Timeline,
    UnitCost,
    Work,
    work_of,
)
from autoplan.solver.between import optimizer_times, scalar_time, send_times, tied_times
from autoplan.solver.inter import StageCut
from autoplan.solver.pricing import Priced, gathering_of, messages_of
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration

__all__ = ["Simulated", "Simulator", "step_costs"]

_CLOSE = 0.05  # of the step: closed form and simulation differed by half of that at most
_RUNNERS_UP = 32
_BUDGET = 2**16  # passes of blocks, of all runners-up together


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A step, and what it was simulated from."""

    costs: StepCosts
    timeline: Timeline


class Simulator:
    """Simulates priced configurations of one problem; step times are kept, timelines are not."""

    def __init__(self, cluster: Cluster, update: UpdateRule) -> None:
        self._cluster = cluster
        self._update = update
        self._timed: dict[tuple[Configuration, int, tuple[int, ...]], Priced] = {}

    def of(self, priced: Priced) -> Simulated | None:
        """The simulated step; None if it has too many events."""
        if self.passes(priced) > MAX_EVENTS:
            return None
        costs = step_costs(priced, self._cluster, self._update)
        return Simulated(costs=costs, timeline=costs.timeline())

    def timed(self, priced: Priced) -> Priced:
        """The configuration with its simulated step time, unless that is too much to simulate."""
        # The point lives as long as what is kept here, so its id stays its own.
        ends = tuple(stage.last for stage in priced.stages)
        key = (priced.configuration, id(priced.point), ends)
        if key not in self._timed:
            found = self.of(priced)
            seconds = priced.step_time if found is None else found.timeline.makespan
            self._timed[key] = replace(priced, step_time=seconds)
        return self._timed[key]

    def passes(self, priced: Priced) -> int:
        """Blocks times microbatches of a step."""
        return len(priced.graph.instances) * priced.configuration.microbatches

    def fastest(self, priced: Sequence[Priced]) -> Priced:
        """The fastest by simulation, of the best by closed form and those close to it."""
        ordered = sorted(priced, key=lambda p: p.step_time)
        limit = ordered[0].step_time * (1 + _CLOSE)
        best, spent = self.timed(ordered[0]), 0
        for runner_up in ordered[1:_RUNNERS_UP]:
            spent += self.passes(runner_up)
            if runner_up.step_time > limit or spent > _BUDGET:
                break
            best = min(best, self.timed(runner_up), key=lambda p: p.step_time)
        return best


def step_costs(priced: Priced, cluster: Cluster, update: UpdateRule) -> StepCosts:
    """What to simulate the step of a priced configuration from."""
    graph, configuration, point = priced.graph, priced.configuration, priced.point
    cut = StageCut.given(tuple((stage.first, stage.last) for stage in priced.stages))
    sends = send_times(graph, configuration, point, cluster)
    crossing = [0.0, *(sends[last - 1] for _, last in cut.ranges[:-1]), 0.0]
    shared, _ = shared_costs(graph, cluster)
    units = [_unit(priced, block) for block in priced.block_times]
    tied = tied_times(graph, configuration, point, cluster, cut)
    updates = optimizer_times(graph, configuration, point, cluster, cut, update)
    scalars = scalar_time(configuration, cluster)
    stages, ends = [], []
    for index, stage in enumerate(priced.stages):
        classes = [i.block_class for i in graph.instances[stage.first : stage.last]]
        first, *others = (units[block] for block in classes)
        stages.append(
            StageCost(
                units=(_after_shared(first, shared), *others),
                send_output=crossing[index + 1],
                send_gradient=crossing[index],
            )
        )
        blocks = [priced.block_times[block] for block in classes]
        publish = sum(block.data_parallel.publish for block in blocks)
        ends.append((_once(priced, blocks) + stage.time.tail_tp, publish))
    tails = []
    for rank, (updating, summing) in enumerate(zip(updates, tied, strict=True)):
        own = [
            end for end, on in zip(ends, configuration.ranks_of_stages, strict=True) if on == rank
        ]
        tails.append(
            Tail(
                collectives=sum(once for once, _ in own) + summing,
                optimizer=updating + scalars,
                publish=sum(publish for _, publish in own),
            )
        )
    return StepCosts(
        schedule=configuration.schedule if configuration.pipelined else "1f1b",
        microbatches=configuration.microbatches,
        stages=tuple(stages),
        tails=tuple(tails),
        data=_data_parallel(priced, cluster),
        messages=messages_of(configuration),
    )


def _unit(priced: Priced, block: BlockTime) -> UnitCost:
    configuration = priced.configuration
    time = unit_time(
        block,
        zero=configuration.zero,
        pipelined=configuration.pipelined,
        microbatches=configuration.microbatches,
    )
    return UnitCost(
        work=work_of(Work(time.forward, time.tp_forward), Work(time.backward, time.tp_backward)),
        gather=block.data_parallel.gather,
        reduce=block.data_parallel.reduce if _reduces_beside(priced) else 0.0,
        reduced=float(block.data_parallel.reduced) if configuration.zero <= 1 else 0.0,
    )


def _after_shared(unit: UnitCost, shared: float) -> UnitCost:
    """Unit of a stage's first block, whose forward follows that of the shared operators."""
    forward = unit.work[ActionKind.FORWARD]
    work = {**unit.work, ActionKind.FORWARD: Work(forward.compute + shared, forward.exposed)}
    return replace(unit, work=work)


def _once(priced: Priced, blocks: Sequence[BlockTime]) -> float:
    """Seconds once a step of copies around collectives, and of sums that nothing hides."""
    configuration = priced.configuration
    seconds = 0.0
    if configuration.zero <= 1 or configuration.pipelined:
        seconds += sum(block.data_parallel.pack for block in blocks)
    if configuration.zero >= 2 and configuration.pipelined:
        seconds += sum(block.data_parallel.unpack for block in blocks)
    if not _reduces_beside(priced):
        seconds += sum(block.data_parallel.reduce for block in blocks)
    return seconds


def _reduces_beside(priced: Priced) -> bool:
    return priced.configuration.sync.overlaps or priced.configuration.zero >= 2


def _data_parallel(priced: Priced, cluster: Cluster) -> DataParallel:
    """How DDP (ZeRO 0 and 1) or FSDP2 run in the runtime's program."""
    configuration, slow_down = priced.configuration, cluster.accelerator.slow_down
    reduction = Reduction.LAST
    if configuration.zero >= 2:
        reduction = Reduction.STAGE if configuration.pipelined else Reduction.EACH
    return DataParallel(
        gathering=gathering_of(configuration),
        reduction=reduction,
        joined=configuration.zero >= 2,
        blocking=configuration.zero >= 2 and cluster.accelerator.synchronous,
        compute_slow_down=slow_down.compute,
        network_slow_down=slow_down.network,
    )
