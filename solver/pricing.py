"""Price of one configuration: stage cut, step time, memory of every stage.

The cut minimises ``sum t + (m - 1) max t`` exactly under each stage's memory; the step time is
then that of the event simulation of the schedule, which for 1F1B with uneven stages is less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.costs.data_parallel import data_parallel_times
from autoplan.costs.memory import (
    BlockMemory,
    MemorySettings,
    StageMemory,
    stage_memory,
    state_bytes,
    unit_bytes,
)
from autoplan.costs.step import BlockTime, StageTime, stage_time, update_traffic
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import NO_RECOMPUTE_WORK, Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.recompute import Recompute
from autoplan.ir.variants import class_families
from autoplan.schedules import in_flight
from autoplan.simulate import Gathering, Messages, simulate_pipeline
from autoplan.solver.between import (
    local_counts,
    optimizer_times,
    partial_grad_time,
    scalar_time,
    send_times,
    tied_times,
)
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.chain import ChainItem, Point
from autoplan.solver.inter import StageCut, cut_stages
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration

__all__ = ["Overflow", "Priced", "StageOutcome", "gathering_of", "parameter_time", "price"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """A stage of a priced configuration: blocks ``first`` to ``last``, seconds and bytes."""

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
    """A configuration that does not fit: its least peak and the stage's parts.

    ``levels`` are those of recompute by block of the chain.
    """

    configuration: Configuration
    levels: tuple[Recompute, ...]
    peak_memory: int
    memory: StageMemory

    def label(self) -> str:
        """Short text for reports."""
        return self.configuration.label(self.levels)


@dataclass(frozen=True, slots=True)
class _Blocks:
    times: tuple[BlockTime, ...]
    memories: tuple[BlockMemory, ...]


def price(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    cluster: Cluster,
    *,
    update: UpdateRule,
    memory_limit: int,
    cut: StageCut | None = None,
) -> Priced | Overflow:
    """Price a configuration with those strategies, cut as given or as well as possible.

    Recompute is as the point says for each class of ``graph``, whatever the configuration's.
    """
    shared_time, shared_bytes = shared_costs(graph, cluster)
    resident = sum(math.prod(b.shape) * dtype_size(b.dtype) for b in graph.buffers)
    # Every stage is handed the whole batch of its data rank.
    resident += configuration.microbatches * sum(tensor.size for tensor in graph.inputs)
    blocks = _blocks(graph, configuration, point, cluster)
    settings = configuration.memory_settings(
        dtype_size(graph.dtype), update=update, host=cluster.accelerator.synchronous
    )
    stages = configuration.mesh.pp
    flights = [
        in_flight(configuration.schedule, stage, stages, configuration.microbatches)
        if configuration.pipelined
        else 1
        for stage in range(stages)
    ]
    sends = send_times(graph, configuration, point, cluster)
    if cut is None:
        limit = memory_limit - resident - shared_bytes * max(flights)
        cut = _cut(graph, configuration, point, blocks, settings, flights, sends, limit)
    memories = [
        _stage_memory(
            graph, point, blocks, settings, (first, last), flights[index], shared_bytes, resident
        )
        for index, (first, last) in enumerate(cut.ranges)
    ]
    worst = max(memories, key=lambda memory: memory.peak)
    if worst.peak > memory_limit:
        return Overflow(
            configuration=configuration,
            levels=_levels(graph, point),
            peak_memory=worst.peak,
            memory=worst,
        )
    times = [
        _stage_time(graph, configuration, point, blocks, *span, shared_time, cluster)
        for span in cut.ranges
    ]
    return _finish(
        graph, configuration, point, cluster, cut, blocks.times, times, memories, sends, update
    )


def gathering_of(configuration: Configuration) -> Gathering:
    """When the runtime's program gathers sharded parameters."""
    if configuration.zero <= 1:
        return Gathering.NEVER
    if configuration.pipelined:
        return Gathering.STEP if configuration.zero == 2 else Gathering.TURN
    return Gathering.FORWARD if configuration.zero == 2 else Gathering.ACTION


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


def _levels(graph: Graph, point: ModelPoint) -> tuple[Recompute, ...]:
    return tuple(point.levels[instance.block_class] for instance in graph.instances)


def _blocks(
    graph: Graph, configuration: Configuration, point: ModelPoint, cluster: Cluster
) -> _Blocks:
    """Times and memory of each class (not instance)."""
    trainable = {p.fqn: p.trainable for p in graph.parameters}
    times, memories = [], []
    first_of = {i.block_class: i for i in reversed(graph.instances)}
    itemsize = dtype_size(graph.dtype)
    families = class_families(graph)
    seen: set[str] = set()
    unseen: dict[int, tuple[bool, ...]] = {}  # by family: which parameters are its own
    for index, (cost, level) in enumerate(zip(point.costs, point.levels, strict=True)):
        counts = local_counts(point, first_of[index])
        numel = sum(counts.values())
        learnt = sum(count for fqn, count in counts.items() if trainable[fqn])
        # A tied parameter is gathered and reduced once; two stages do so each for itself.
        bound = first_of[index].parameters
        if families[index] == index:
            unseen[index] = tuple(configuration.pipelined or fqn not in seen for fqn in bound)
            seen.update(counts)
        own = {f: counts[f] for f, new in zip(bound, unseen[families[index]], strict=True) if new}
        recompute = cluster.accelerator.recompute.get(level.value, NO_RECOMPUTE_WORK)
        first_pass, second_pass = recompute.of(len(graph.classes[index].ops))
        times.append(
            BlockTime(
                forward=cost.forward + first_pass,
                backward=cost.backward,
                tp_forward=cost.tp_forward,
                tp_backward=cost.tp_backward,
                again=cost.forward_again(level) + second_pass,
                data_parallel=data_parallel_times(
                    numel=sum(own.values()),
                    trainable=sum(n for fqn, n in own.items() if trainable[fqn]),
                    itemsize=itemsize,
                    zero=configuration.zero,
                    mesh=configuration.mesh,
                    cluster=cluster,
                    tensors=len(own),
                    sync=configuration.sync,
                ),
            )
        )
        held = cost.held.at(level)
        memories.append(
            BlockMemory(
                numel=numel,
                trainable=learnt,
                largest=max((n for fqn, n in counts.items() if trainable[fqn]), default=0),
                kept=held.kept,
                forward=held.forward,
                working=held.backward,
                fresh=held.fresh,
                boundary_in=cost.boundary,
                boundary_out=cost.boundary_out,
                inputs=cost.held.inputs,
                outputs=cost.held.outputs,
                kept_inputs=held.kept_inputs,
                kept_outputs=held.kept_outputs,
                passed=cost.held.passed,
            )
        )
    return _Blocks(tuple(times), tuple(memories))


def _cut(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    blocks: _Blocks,
    settings: MemorySettings,
    flights: Sequence[int],
    sends: Sequence[float],
    limit: int,
) -> StageCut:
    if not configuration.pipelined:
        return StageCut.given(((0, len(graph.instances)),))
    items = []
    uses = Counter(fqn for instance in graph.instances for fqn in instance.parameters)
    for position, instance in enumerate(graph.instances):
        time = blocks.times[instance.block_class]
        memory = blocks.memories[instance.block_class]
        counts = local_counts(point, instance)
        tied = {fqn: count for fqn, count in counts.items() if uses[fqn] > 1}
        own = sum(tied.values())
        static = sum(state_bytes(memory.numel - own, max(0, memory.trainable - own), settings))
        only = Point(
            forward=time.forward + time.tp_forward,
            backward=time.backward + time.tp_backward + time.again,
            static=static,
            activation=memory.kept,
            transient=max(memory.forward, memory.working) + unit_bytes(memory.numel, settings),
        )
        items.append(
            ChainItem(
                points=(only,),
                boundary=memory.boundary_out,
                send=sends[position] if position < len(sends) else 0.0,
                tied=tuple(
                    (fqn, sum(state_bytes(count, count, settings))) for fqn, count in tied.items()
                ),
            )
        )
    return cut_stages(
        items,
        stages=configuration.mesh.pp,
        microbatches=configuration.microbatches,
        in_flight=flights,
        memory_limit=limit,
    )


def _stage_memory(
    graph: Graph,
    point: ModelPoint,
    blocks: _Blocks,
    settings: MemorySettings,
    span: tuple[int, int],
    flight: int,
    shared: int,
    resident: int,
) -> StageMemory:
    first, last = span
    held: dict[str, int] = {}
    tied: dict[str, int] = {}
    parts = []
    for instance in graph.instances[first:last]:
        memory = blocks.memories[instance.block_class]
        counts = local_counts(point, instance)
        tied.update((fqn, count) for fqn, count in counts.items() if fqn in held)
        repeated = sum(count for fqn, count in counts.items() if fqn in held)
        held.update(counts)
        parts.append(
            replace(
                memory,
                numel=memory.numel - repeated,
                trainable=max(0, memory.trainable - repeated),
            )
        )
    if first == 0:
        parts[0] = replace(parts[0], boundary_in=0)
    if last == len(graph.instances):
        parts[-1] = replace(parts[-1], boundary_out=0)
    return stage_memory(
        parts,
        settings,
        in_flight=flight,
        shared=shared,
        resident=resident,
        tied=sum(tied.values()),
    )


def _stage_time(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    blocks: _Blocks,
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
    sends: Sequence[float],
    update: UpdateRule,
) -> Priced:
    microbatches = configuration.microbatches
    updates = optimizer_times(graph, configuration, point, cluster, cut, update)
    tied = tied_times(graph, configuration, point, cluster, cut)
    if configuration.pipelined:
        forward = [time.forward for time in times]
        backward = [time.backward for time in times]
        crossing = [sends[last - 1] for _, last in cut.ranges[:-1]]
        gathers = [time.gathering for time in times]
        gathering = gathering_of(configuration)
        timeline = simulate_pipeline(
            configuration.schedule,
            forward,
            backward,
            crossing,
            microbatches,
            messages=Messages.AWAITED,
            gather=gathers,
            gathering=gathering,
        )
        silent = simulate_pipeline(
            configuration.schedule,
            forward,
            backward,
            [0.0] * len(crossing),
            microbatches,
            gather=gathers,
            gathering=gathering,
        )
        makespan, unsent = timeline.makespan, silent.makespan
        ends = list(timeline.end_of_stage)
    else:
        makespan = unsent = microbatches * (times[0].forward + times[0].backward)
        ends = [makespan]
    finishes = [
        end + time.tail_dp + time.tail_tp + summing
        for end, time, summing in zip(ends, times, tied, strict=True)
    ]
    # Clipping by the global norm makes every rank wait for the last gradient.
    synced = max(finishes)
    optimizer = max(updates) + scalar_time(configuration, cluster)
    return Priced(
        graph=graph,
        configuration=configuration,
        point=point,
        stages=tuple(
            StageOutcome(first=first, last=last, time=time, memory=memory)
            for (first, last), time, memory in zip(cut.ranges, times, memories, strict=True)
        ),
        step_time=synced + optimizer,
        pipeline_time=makespan,
        unsent_pipeline_time=unsent,
        optimizer=optimizer,
        block_times=block_times,
    )
