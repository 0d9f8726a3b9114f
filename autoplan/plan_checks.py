"""Validation of a plan beyond its schema: sums, degrees, stages, placements. No solver.

A plan that passes can be emitted; what a check finds is a list of sentences, so that all
of them are seen at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from autoplan.errors import InputError, UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.graph_record import BlockClassRecord
from autoplan.ir.placement import (
    Placement,
    Replicate,
    Shard,
    can_pad,
    conversion,
    parse_placement,
    required_state,
)
from autoplan.ir.plan import Plan
from autoplan.ir.record import graph_from_record, strategies_from_record
from autoplan.schedules import ONE_STAGE, check
from autoplan.simulate import timeline_of_plan

__all__ = ["check_plan", "require_sound"]

# The parts of the time are rounded sums of floats.
_RELATIVE = 1e-6


def require_sound(plan: Plan, where: Path) -> None:
    """Raise `InputError` with the first finding of `check_plan`, if there is one."""
    findings = check_plan(plan)
    if findings:
        more = f" (and {len(findings) - 1} more, see --json)" if len(findings) > 1 else ""
        raise InputError(
            f"{where}: {findings[0]}{more}",
            hint="the file was changed by hand or damaged: solve again",
            details={"findings": list(findings)},
        )


def check_plan(plan: Plan) -> list[str]:
    """Sentences, one for each thing that is wrong with ``plan``; empty when it is sound."""
    findings = [*_degrees(plan), *_stages(plan)]
    findings += [*_sums(plan, simulated=not findings), *_limits(plan)]
    try:
        graph = graph_from_record(plan.graph)
        graph.validate()
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return [*findings, f"graph: {error}"]
    return [*findings, *_parameters(plan), *_boundaries(plan, graph), *_strategies(plan, graph)]


def _degrees(plan: Plan) -> Iterator[str]:
    mesh, cluster, pipeline = plan.mesh, plan.cluster, plan.pipeline
    world = mesh.pp * mesh.dp_replicate * mesh.dp_shard * mesh.tp
    ranks = cluster.nodes * cluster.ranks_per_node
    if world != ranks:
        yield f"mesh: its degrees multiply to {world} ranks, the cluster has {ranks}"
    if pipeline.micro_batch_size != plan.graph.micro_batch_size:
        yield (
            f"pipeline: microbatches of {pipeline.micro_batch_size}, "
            f"the graph was captured at {plan.graph.micro_batch_size}"
        )
    data_ranks = mesh.dp_replicate * mesh.dp_shard
    batch = pipeline.microbatches * pipeline.micro_batch_size * data_ranks
    if batch != plan.workload.global_batch:
        yield (
            f"pipeline: {pipeline.microbatches} microbatches x {pipeline.micro_batch_size} x "
            f"{data_ranks} data-parallel ranks = {batch}, "
            f"the global batch is {plan.workload.global_batch}"
        )


def _stages(plan: Plan) -> Iterator[str]:
    stages = plan.pipeline.stages
    if plan.mesh.pp > 1 and plan.pipeline.schedule != "none":
        yield from _schedule(plan)
    elif len(stages) > 1:
        yield f"pipeline: {len(stages)} stages without a schedule"
    if (plan.pipeline.schedule == "none") != (plan.mesh.pp == 1):
        yield f"pipeline: schedule {plan.pipeline.schedule} with pp {plan.mesh.pp}"
    position = 0
    for index, stage in enumerate(stages):
        if stage.first != position or stage.last <= stage.first:
            yield f"stage {index}: blocks {stage.first} to {stage.last}, expected from {position}"
        position = stage.last
    if plan.step is not None:
        blocks = [stage.last - stage.first for stage in stages]
        units = [sum(count for _, count in stage.units) for stage in plan.step.stages]
        if units != blocks:
            yield f"step: stages of {units} units, those of the pipeline have {blocks} blocks"
    if position != len(plan.graph.instances):
        yield f"stages end at block {position} of {len(plan.graph.instances)}"


def _schedule(plan: Plan) -> Iterator[str]:
    name, each = plan.pipeline.schedule, plan.virtual_stages
    try:
        check(name, plan.mesh.pp, plan.pipeline.microbatches, each)
    except UsageError as error:
        yield f"pipeline: {error}"
    if name not in ONE_STAGE and plan.zero >= 2:
        yield f"pipeline: {name} with ZeRO {plan.zero}, it is run with 0 and 1"


def _sums(plan: Plan, *, simulated: bool) -> Iterator[str]:
    prediction = plan.prediction
    total = sum(prediction.time.model_dump().values())
    if not math.isclose(total, prediction.step_time, rel_tol=_RELATIVE):
        yield f"time: the parts sum to {total:.9g} s, the step time is {prediction.step_time:.9g} s"
    for index, stage in enumerate(prediction.stages):
        parts = sum(size for part, size in stage.model_dump().items() if part != "peak")
        if parts != stage.peak:
            yield f"rank {index}: memory parts sum to {parts} B, the peak is {stage.peak} B"
    timeline = timeline_of_plan(plan) if simulated else None
    if timeline and not math.isclose(timeline.makespan, prediction.step_time, rel_tol=_RELATIVE):
        yield (
            f"step: its costs take {timeline.makespan:.9g} s, "
            f"the step time is {prediction.step_time:.9g} s"
        )
    peak = max((stage.peak for stage in prediction.stages), default=0)
    if peak != prediction.peak_memory:
        yield f"memory: the fullest rank needs {peak} B, the plan says {prediction.peak_memory} B"


def _limits(plan: Plan) -> Iterator[str]:
    prediction = plan.prediction
    if prediction.peak_memory > prediction.memory_limit:
        yield (
            f"memory: {prediction.peak_memory} B needed, the limit is {prediction.memory_limit} B"
        )
    if prediction.memory_limit > plan.cluster.memory:
        yield (
            f"memory: the limit of {prediction.memory_limit} B is over the device's "
            f"{plan.cluster.memory} B"
        )
    if prediction.lower_bound > prediction.step_time * (1 + _RELATIVE):
        yield "optimality: the lower bound is above the step time"


def _parameters(plan: Plan) -> Iterator[str]:
    for parameter in plan.graph.parameters:
        placement = parse_placement(parameter.placement)
        if not isinstance(placement, Shard):
            continue
        dim = placement.dim
        sizes = parameter.shape[dim : dim + 1]
        if placement.pad:
            fits = all(can_pad(size, plan.mesh.tp) for size in sizes)
        else:
            fits = not any(size % (placement.blocks * plan.mesh.tp) for size in sizes)
        if not sizes or not fits:
            shape = list(parameter.shape)
            yield f"{parameter.fqn}: {placement} of shape {shape} on tp {plan.mesh.tp}"


def _boundaries(plan: Plan, graph: Graph) -> Iterator[str]:
    """Blocks receive tensors as the block before hands them on."""
    records = plan.graph.classes
    for before, after in pairwise(graph.instances):
        sent = records[before.block_class].boundary_out
        sent = tuple(p for position, p in enumerate(sent) if position not in before.unused)
        received = records[after.block_class].boundary_in
        if sent and received and sent != received:
            yield (
                f"{after.name}: it takes tensors as {', '.join(received)}, "
                f"{before.name} hands them on as {', '.join(sent)}"
            )


def _strategies(plan: Plan, graph: Graph) -> Iterator[str]:
    storage = {p.fqn: parse_placement(p.placement) for p in plan.graph.parameters}
    chosen = strategies_from_record(plan.graph)
    first = {i.block_class: i for i in reversed(graph.instances)}
    for index, block in enumerate(graph.classes):
        produced = _boundary(plan.graph.classes[index])
        if index in first:
            bound = zip(block.parameters, first[index].parameters, strict=True)
            produced |= {name: storage[fqn] for name, fqn in bound}
        for op in block.ops:
            strategy = chosen[index].get(op.name)
            if strategy is None:
                if plan.mesh.tp > 1:
                    yield f"{block.name}.{op.name}: no strategy"
                continue
            if (len(strategy.inputs), len(strategy.outputs)) != (len(op.inputs), len(op.outputs)):
                yield f"{block.name}.{op.name}: strategy {strategy} has the wrong arity"
                continue
            for name, placement in zip(op.inputs, strategy.inputs, strict=True):
                differentiable = block.tensor(name).requires_grad
                required = required_state(
                    placement, strategy.outputs, differentiable=differentiable
                )
                source = produced.get(name, Replicate())
                if conversion(source, required, differentiable=differentiable) is None:
                    yield f"{block.name}.{op.name}: {name} can't go from {source} to {required}"
            produced |= dict(zip(op.outputs, strategy.outputs, strict=True))


def _boundary(record: BlockClassRecord) -> dict[str, Placement]:
    placements = map(parse_placement, record.boundary_in)
    return dict(zip(record.inputs, placements, strict=False))
