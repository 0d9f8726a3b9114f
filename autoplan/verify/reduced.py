"""A plan at a size this machine can run: the same program, narrower, with fewer ranks.

Degrees are clipped to 2, so that every axis of the plan stays an axis. The model is the same
architecture, narrow and a few layers deep; its block classes must have the same operators,
in the same order, as the plan's, and each gets the strategy the plan chose for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoplan.capture import ModelSource, capture
from autoplan.errors import UsageError
from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.graph_record import BlockClassRecord, GraphRecord
from autoplan.ir.levels import level_summary
from autoplan.ir.placement import Placement, Shard, parse_placement
from autoplan.ir.plan import MeshRecord, PipelineRecord, Plan, StageRecord
from autoplan.ir.recompute import Recompute
from autoplan.ir.record import graph_from_record, graph_to_record, strategies_from_record
from autoplan.ir.strategy import OpStrategy
from autoplan.ir.variants import class_families, split_classes
from autoplan.rules import strategies

__all__ = ["Reduced", "reduced_plan"]

_LAYERS = 4
_SEQ_LEN = 64
_DEGREE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """A reduced plan, its model, and one sentence that says what is reduced."""

    plan: Plan
    source: ModelSource
    note: str


def reduced_plan(plan: Plan, source: ModelSource, *, max_parameters: int) -> Reduced:
    """Reduced form of a plan; UsageError where its model has none."""
    mesh = MeshRecord(**{axis: min(d, _DEGREE) for axis, d in plan.mesh.model_dump().items()})
    small = source.reduced(layers=_LAYERS, tp=mesh.tp)
    if small is None and plan.model.num_parameters > max_parameters:
        raise UsageError(
            f"{plan.model.spec} has {plan.model.num_parameters:,} parameters and no reduced form",
            hint="verify --full on a machine with enough memory, or solve a smaller model",
        )
    seq_len = plan.workload.seq_len if small is None else min(plan.workload.seq_len, _SEQ_LEN)
    model = small or source
    captured = capture(model, seq_len=seq_len, dtype=plan.graph.dtype)
    graph, planned = _like(captured.at(plan.pipeline.micro_batch_size), plan.graph)
    _check_same(graph, planned)
    microbatches = min(plan.pipeline.microbatches, 2 * mesh.pp)
    each = min(plan.virtual_stages, len(graph.instances) // mesh.pp)
    batch = plan.pipeline.micro_batch_size * microbatches * mesh.dp_replicate * mesh.dp_shard
    ranks = mesh.pp * mesh.dp_replicate * mesh.dp_shard * mesh.tp
    record = _graph_record(graph, planned, mesh.tp)
    reduced = plan.model_copy(
        update={
            "model": captured.record(),
            "mesh": mesh,
            "workload": plan.workload.model_copy(
                update={"global_batch": batch, "seq_len": seq_len}
            ),
            "pipeline": PipelineRecord(
                schedule=plan.pipeline.schedule,
                microbatches=microbatches,
                micro_batch_size=plan.pipeline.micro_batch_size,
                stages=_even_stages(len(graph.instances), mesh.pp * each),
            ),
            "cluster": plan.cluster.model_copy(update={"nodes": 1, "ranks_per_node": ranks}),
            "graph": record,
            "recompute": level_summary(record.levels),
        }
    )
    note = _note(plan, reduced, changed=small is not None)
    return Reduced(plan=reduced, source=model, note=note)


def _note(plan: Plan, reduced: Plan, *, changed: bool) -> str:
    degrees = ", ".join(
        f"{axis} {now} of {before}" if now != before else f"{axis} {now}"
        for (axis, before), now in zip(
            plan.mesh.model_dump().items(), reduced.mesh.model_dump().values(), strict=True
        )
        if before > 1
    )
    parts = [f"verified at reduced size: {degrees or '1 rank'}"]
    if changed:
        count = reduced.model.num_parameters
        parts.append(
            f"a narrow model of {len(reduced.graph.instances)} blocks ({count:,} of "
            f"{plan.model.num_parameters:,} parameters), sequence {reduced.workload.seq_len}"
        )
    return "; ".join(parts)


def _like(graph: Graph, record: GraphRecord) -> tuple[Graph, GraphRecord]:
    """The reduced graph, its copies of a block planned differently where the plan's are.

    Each variant gets consecutive copies, as evenly as it goes, in the order of the chain.
    """
    families = class_families(graph_from_record(record))
    kinds = list(dict.fromkeys(families))
    if len(graph.classes) != len(kinds):
        raise _unlike(f"{len(graph.classes)} kinds of block instead of {len(kinds)}")
    variants = [[k for k, family in enumerate(families) if family == kind] for kind in kinds]
    copies = Counter(instance.block_class for instance in graph.instances)
    passed: Counter[int] = Counter()
    picks = []
    for instance in graph.instances:
        kind = instance.block_class
        if copies[kind] < len(variants[kind]):
            raise _unlike(
                f"{copies[kind]} of {graph.classes[kind].name}, which the plan has "
                f"in {len(variants[kind])} variants"
            )
        picks.append(variants[kind][passed[kind] * len(variants[kind]) // copies[kind]])
        passed[kind] += 1
    split = split_classes(graph, picks)
    return split.graph, _of_classes(record, split.picks)


def _of_classes(record: GraphRecord, chosen: Sequence[int]) -> GraphRecord:
    """The record with its classes in another order."""
    place = {index: position for position, index in enumerate(chosen)}
    instances = (
        i.model_copy(update={"block_class": place[i.block_class]}) for i in record.instances
    )
    classes = tuple(record.classes[index] for index in chosen)
    return record.model_copy(update={"classes": classes, "instances": tuple(instances)})


def _check_same(graph: Graph, record: GraphRecord) -> None:
    """The reduced model has the plan's block classes, operator by operator."""
    if len(graph.classes) != len(record.classes):
        raise _unlike(f"{len(graph.classes)} kinds of block instead of {len(record.classes)}")
    for block, planned in zip(graph.classes, record.classes, strict=True):
        targets = [op.target for op in block.ops]
        if targets != [op.target for op in planned.ops]:
            raise _unlike(f"other operators in {block.name}")
        if len(block.parameters) != len(planned.parameters):
            raise _unlike(f"other parameters in {block.name}")


def _unlike(what: str) -> UsageError:
    return UsageError(
        f"the reduced model differs from the plan's: {what}",
        hint="verify --full runs the plan's own size",
    )


def _even_stages(blocks: int, stages: int) -> tuple[StageRecord, ...]:
    cuts = [round(index * blocks / stages) for index in range(stages + 1)]
    return tuple(StageRecord(first=first, last=last) for first, last in pairwise(cuts))


def _graph_record(graph: Graph, planned: GraphRecord, ranks: int) -> GraphRecord:
    chosen = strategies_from_record(planned)
    matched = tuple(
        _match(block, record, of_class, ranks)
        for block, record, of_class in zip(graph.classes, planned.classes, chosen, strict=True)
    )
    boundaries = tuple(
        (
            tuple(map(parse_placement, record.boundary_in)),
            tuple(map(parse_placement, record.boundary_out)),
        )
        for record in planned.classes
    )
    return graph_to_record(
        graph,
        strategies=matched,
        boundaries=boundaries,
        placements=_placements(graph, planned, ranks),
        levels=[Recompute(record.recompute) for record in planned.classes],
    )


def _match(
    block: BlockClass, record: BlockClassRecord, chosen: dict[str, OpStrategy], ranks: int
) -> dict[str, OpStrategy]:
    """For each operator the legal strategy with the placements the plan chose."""
    matched = {}
    for op, planned in zip(block.ops, record.ops, strict=True):
        wanted = chosen[planned.name]
        found = [
            strategy
            for strategy in strategies(op, block, ranks)
            if _without_padding(strategy) == _without_padding(wanted)
        ]
        if not found:
            raise _unlike(f"{block.name}.{op.name} can't run as {wanted} on {ranks} ranks")
        matched[op.name] = found[0]
    return matched


def _without_padding(strategy: OpStrategy) -> tuple[object, ...]:
    """What makes two strategies the same: whether a dim divides depends on its size."""
    placements = (*strategy.inputs, *strategy.outputs)
    plain = [replace(p, pad=False) if isinstance(p, Shard) else p for p in placements]
    return (*plain, strategy.call)


def _stored(text: str, shape: tuple[int, ...], ranks: int) -> Placement:
    placement = parse_placement(text)
    if isinstance(placement, Shard) and placement.blocks == 1:
        return replace(placement, pad=shape[placement.dim] % ranks != 0)
    return placement


def _placements(
    graph: Graph, planned: GraphRecord, ranks: int
) -> dict[str, tuple[Placement, bool]]:
    """Storage by FQN, as the plan stores what the same name of the same class stands for."""
    parameters = {parameter.fqn: parameter for parameter in planned.parameters}
    by_class: dict[int, tuple[str, ...]] = {}
    for instance in planned.instances:
        by_class.setdefault(instance.block_class, instance.parameters)
    placements: dict[str, tuple[Placement, bool]] = {}
    for bound in graph.instances:
        for fqn, same in zip(bound.parameters, by_class[bound.block_class], strict=True):
            record = parameters[same]
            before = placements.get(fqn, (None, False))
            placements[fqn] = (
                _stored(record.placement, graph.parameter(fqn).shape, ranks),
                record.partial_grad or before[1],
            )
    return placements
