"""Price of one configuration with given strategies and stages: step time, memory of each stage.

The step time is that of the event simulation of the schedule, stages taken as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from autoplan.costs.data_parallel import data_parallel_times
from autoplan.costs.memory import StageMemory
from autoplan.costs.step import BlockTime, StageTime, stage_time, update_traffic
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.recompute import Recompute
from autoplan.simulate import Gathering, Messages, simulate_pipeline
from autoplan.solver.between import (
    optimizer_times,
    partial_grad_time,
    scalar_time,
    send_times,
    tied_times,
)
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.inter import StageCut
from autoplan.solver.memories import rank_memories
from autoplan.solver.pieces import Pieces, pieces
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration
from autoplan.solver.sweep import Ranges

__all__ = [
    "Appraisal",
    "Found",
    "Overflow",
    "Priced",
    "Slower",
    "StageOutcome",
    "better",
    "gathering_of",
    "least_pipeline_time",
    "memories_of",
    "messages_of",
    "parameter_time",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """A stage of a priced configuration: blocks ``first`` to ``last``, seconds and bytes.

    ``memory`` is that of the stage's rank, other stages of it included.
    """

    first: int
    last: int
    time: StageTime
    memory: StageMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A configuration that fits, with its step time in seconds and where it goes.

    ``graph`` has the classes that ``point`` and ``block_times`` are by: a variant graph
    (`ir.variants`) where copies of a block differ. ``step_time`` is by the closed form, or
    simulated: see `solver.timing`.
    """

    graph: Graph
    configuration: Configuration
    point: ModelPoint
    stages: tuple[StageOutcome, ...]
    step_time: float
    pipeline_time: float
    unsent_pipeline_time: float
    optimizer: float
    block_times: tuple[BlockTime, ...]

    @property
    def peak_memory(self) -> int:
        """Bytes on the fullest rank."""
        return max(stage.memory.peak for stage in self.stages)

    @property
    def levels(self) -> tuple[Recompute, ...]:
        """Recompute level of each block of the chain."""
        return _levels(self.graph, self.point)

    def label(self) -> str:
        """Short text for reports."""
        return self.configuration.label(self.levels)

    def local_parameters(self, counts: Sequence[int]) -> int:
        """Elements of parameters that a rank of each stage holds, all stages together."""
        return sum(
            count * elements
            for count, cost in zip(counts, self.point.costs, strict=True)
            for _, elements, _ in cost.parameters
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A configuration that does not fit: its least peak, parts of that rank, all pipeline ranks.

    ``levels`` are those of recompute by block of the chain; ``graph`` has the classes that
    ``point`` is by, ``ranges`` are the blocks of each stage.
    """

    graph: Graph
    configuration: Configuration
    point: ModelPoint
    ranges: Ranges
    levels: tuple[Recompute, ...]
    peak_memory: int
    memory: StageMemory
    stages: tuple[StageMemory, ...]

    def label(self) -> str:
        """Short text for reports."""
        return self.configuration.label(self.levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A configuration that fits but takes ``bound`` seconds at least, more than was asked for."""

    configuration: Configuration
    levels: tuple[Recompute, ...]
    bound: float
    stages: tuple[StageMemory, ...]

    @property
    def peak_memory(self) -> int:
        """Bytes on the fullest rank."""
        return max(stage.peak for stage in self.stages)

    def label(self) -> str:
        """Short text for reports."""
        return self.configuration.label(self.levels)


Found = Priced | Overflow | Slower


def memories_of(found: Found) -> tuple[StageMemory, ...]:
    """Memory of each pipeline rank."""
    if isinstance(found, Priced):
        return tuple(stage.memory for stage in found.stages[: found.configuration.mesh.pp])
    return found.stages


def better(first: Found, second: Found) -> Found:
    """The faster price; else what says most: that it is slower, or the least overflow."""
    priced = [found for found in (first, second) if isinstance(found, Priced)]
    if priced:
        return min(priced, key=lambda found: found.step_time)
    slower = [found for found in (first, second) if isinstance(found, Slower)]
    if slower:
        return min(slower, key=lambda found: found.bound)
    overflows = [found for found in (first, second) if isinstance(found, Overflow)]
    return min(overflows, key=lambda found: found.peak_memory)


class Appraisal:
    """A configuration with given strategies and cut: what it holds and takes, found once.

    A memory limit, or a time that is to be beaten, only decides how much of that is asked.
    """

    def __init__(
        self,
        graph: Graph,
        configuration: Configuration,
        point: ModelPoint,
        cluster: Cluster,
        *,
        update: UpdateRule,
        cut: StageCut,
    ) -> None:
        self._graph, self._configuration, self._point = graph, configuration, point
        self._cluster, self._update, self._cut = cluster, update, cut
        self._blocks = pieces(graph, configuration, point, cluster)

    def found(self, *, memory_limit: int, enough: float = math.inf) -> Found:
        """Price if it fits in ``memory_limit`` bytes and may be below ``enough`` seconds."""
        worst = max(self._memories, key=lambda memory: memory.peak)
        levels = _levels(self._graph, self._point)
        if worst.peak > memory_limit:
            return Overflow(
                graph=self._graph,
                configuration=self._configuration,
                point=self._point,
                ranges=self._cut.ranges,
                levels=levels,
                peak_memory=worst.peak,
                memory=worst,
                stages=self._memories,
            )
        if self._least >= enough:
            return Slower(
                configuration=self._configuration,
                levels=levels,
                bound=self._least,
                stages=self._memories,
            )
        return self._priced

    @cached_property
    def _memories(self) -> tuple[StageMemory, ...]:
        return rank_memories(
            self._graph,
            self._configuration,
            self._point,
            self._blocks,
            self._cut,
            self._cluster,
            self._update,
        )

    @cached_property
    def _times(self) -> list[StageTime]:
        shared, _ = shared_costs(self._graph, self._cluster)
        graph, configuration, point = self._graph, self._configuration, self._point
        return [
            _stage_time(graph, configuration, point, self._blocks, *span, shared, self._cluster)
            for span in self._cut.ranges
        ]

    @cached_property
    def _optimizer(self) -> float:
        updates = optimizer_times(
            self._graph, self._configuration, self._point, self._cluster, self._cut, self._update
        )
        return max(updates) + scalar_time(self._configuration, self._cluster)

    @cached_property
    def _least(self) -> float:
        return self._optimizer + _least_time(self._configuration, self._times)

    @cached_property
    def _priced(self) -> Priced:
        return _finish(
            self._graph,
            self._configuration,
            self._point,
            self._cluster,
            self._cut,
            self._blocks.times,
            self._times,
            self._memories,
            self._optimizer,
        )


def _levels(graph: Graph, point: ModelPoint) -> tuple[Recompute, ...]:
    return tuple(point.levels[instance.block_class] for instance in graph.instances)


def least_pipeline_time(stages: Sequence[float], microbatches: int) -> float:
    """Seconds that any schedule takes at least: stage s waits for one microbatch to pass s - 1.

    >>> least_pipeline_time([1.0, 2.0], 4)
    9.0
    """
    least = passed = 0.0
    for seconds in stages:
        least = max(least, microbatches * seconds + passed)
        passed += seconds
    return least


def _least_time(configuration: Configuration, times: Sequence[StageTime]) -> float:
    """Seconds that the microbatches take at least."""
    seconds = [time.forward + time.backward for time in times]
    if not configuration.looped:
        return least_pipeline_time(seconds, configuration.microbatches)
    busy = [0.0] * configuration.mesh.pp
    for rank, own in zip(configuration.ranks_of_stages, seconds, strict=True):
        busy[rank] += own
    return configuration.microbatches * max(busy)


def gathering_of(configuration: Configuration) -> Gathering:
    """When the runtime's program gathers sharded parameters."""
    if configuration.zero <= 1:
        return Gathering.NEVER
    if configuration.pipelined:
        return Gathering.STEP if configuration.zero == 2 else Gathering.TURN
    return Gathering.FORWARD if configuration.zero == 2 else Gathering.ACTION


def messages_of(configuration: Configuration) -> Messages:
    """What waits while the runtime's messages travel."""
    if configuration.pipelined and not configuration.looped:
        return Messages.AWAITED
    return Messages.BESIDE


def parameter_time(
    configuration: Configuration, itemsize: int, cluster: Cluster, *, update: UpdateRule
) -> float:
    """Seconds a step for a byte of local parameters: its update, and data parallelism's part.

    The latter as if nothing hid it, so this is the most that a byte may cost.
    """
    elements = 2**28
    moved = update_traffic(
        elements,
        zero=configuration.zero,
        dp_shard=configuration.mesh.dp_shard,
        itemsize=itemsize,
        update=update,
    )
    times = data_parallel_times(
        numel=elements,
        trainable=elements,
        itemsize=itemsize,
        zero=configuration.zero,
        mesh=configuration.mesh,
        cluster=cluster,
    )
    sums = times.reduce + times.publish + times.gather
    if configuration.zero >= 2 and not configuration.pipelined:
        sums *= configuration.microbatches
    return (moved.seconds(cluster.accelerator) + sums) / (elements * itemsize)


def _stage_time(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    blocks: Pieces,
    first: int,
    last: int,
    shared: float,
    cluster: Cluster,
) -> StageTime:
    chosen = graph.instances[first:last]
    return stage_time(
        [blocks.times[instance.block_class] for instance in chosen],
        zero=configuration.zero,
        pipelined=configuration.pipelined,
        microbatches=configuration.microbatches,
        shared=shared,
        partial_grad=partial_grad_time(
            configuration, point, chosen, cluster, dtype_size(graph.dtype)
        ),
        overlaps=configuration.sync.overlaps,
        slow_down=cluster.accelerator.slow_down,
        synchronous=cluster.accelerator.synchronous,
    )


def _finish(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    cluster: Cluster,
    cut: StageCut,
    block_times: tuple[BlockTime, ...],
    times: Sequence[StageTime],
    memories: Sequence[StageMemory],
    optimizer: float,
) -> Priced:
    microbatches = configuration.microbatches
    sends = send_times(graph, configuration, point, cluster)
    tied = tied_times(graph, configuration, point, cluster, cut)
    if configuration.pipelined:
        forward = [time.forward for time in times]
        backward = [time.backward for time in times]
        crossing = [sends[last - 1] for _, last in cut.ranges[:-1]]
        gathers = [time.gathering for time in times]
        gathering = gathering_of(configuration)
        ranks = configuration.mesh.pp
        timeline = simulate_pipeline(
            configuration.schedule,
            forward,
            backward,
            crossing,
            microbatches,
            ranks,
            messages=messages_of(configuration),
            gather=gathers,
            gathering=gathering,
        )
        silent = simulate_pipeline(
            configuration.schedule,
            forward,
            backward,
            [0.0] * len(crossing),
            microbatches,
            ranks,
            gather=gathers,
            gathering=gathering,
        )
        makespan, unsent = timeline.makespan, silent.makespan
        ends = list(timeline.end_of_stage)
    else:
        makespan = unsent = microbatches * (times[0].forward + times[0].backward)
        ends = [makespan]
    # Clipping by the global norm makes every rank wait for the last gradient.
    synced = max(map(sum, zip(_finishes(configuration, ends, times), tied, strict=True)))
    return Priced(
        graph=graph,
        configuration=configuration,
        point=point,
        stages=tuple(
            StageOutcome(first=first, last=last, time=time, memory=memories[rank])
            for (first, last), time, rank in zip(
                cut.ranges, times, configuration.ranks_of_stages, strict=True
            )
        ),
        step_time=synced + optimizer,
        pipeline_time=makespan,
        unsent_pipeline_time=unsent,
        optimizer=optimizer,
        block_times=block_times,
    )


def _finishes(
    configuration: Configuration, ends: Sequence[float], times: Sequence[StageTime]
) -> list[float]:
    """Instants at which pipeline ranks have summed their gradients, but for tied ones.

    Gradients of a stage are summed beside what the rank then runs of other stages.
    """
    finishes = []
    ranks = configuration.ranks_of_stages
    order = sorted(range(len(ends)), key=lambda stage: (ranks[stage], ends[stage]))
    for _, stages in groupby(order, key=lambda stage: ranks[stage]):
        summed = left = 0.0
        for stage in stages:
            time = times[stage]
            summed = max(summed, ends[stage]) + time.tail_reduce
            left += time.tail_dp - time.tail_reduce + time.tail_tp
        finishes.append(summed + left)
    return finishes
