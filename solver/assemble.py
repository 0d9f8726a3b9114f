"""From the outcome of a search to the plan file."""

from __future__ import annotations

from typing import Literal

from autoplan import __version__
from autoplan.costs.compute import matmul_rate
from autoplan.ir.graph import Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.levels import level_summary
from autoplan.ir.placement import Placement, Replicate
from autoplan.ir.plan import (
    MAX_EVENTS,
    BaselineRecord,
    CandidateRecord,
    MemoryRecord,
    MeshRecord,
    ModelRecord,
    PinRecord,
    PipelineRecord,
    Plan,
    PredictionRecord,
    StageRecord,
    TimeRecord,
    WorkloadRecord,
)
from autoplan.ir.record import graph_to_record
from autoplan.profiles import cluster_record
from autoplan.rules.coverage import replicated_notes, rule_coverage
from autoplan.simulate import step_record
from autoplan.solver.baselines import Baseline
from autoplan.solver.explore import Outcome
from autoplan.solver.frames import class_counts
from autoplan.solver.measured import operators_note
from autoplan.solver.pricing import Found, Overflow, Priced, Slower
from autoplan.solver.space import Pins
from autoplan.solver.timing import Simulated, Simulator
from autoplan.units import format_bytes

__all__ = ["assemble"]

_CONSIDERED = 8
_ZERO_LEVELS: tuple[Literal[0], Literal[1], Literal[2], Literal[3]] = (0, 1, 2, 3)


def assemble(
    model: ModelRecord,
    workload: WorkloadRecord,
    cluster: Cluster,
    pins: Pins,
    outcome: Outcome,
    baselines: list[Baseline],
    simulator: Simulator,
    memory_limit: int,
) -> Plan:
    """Plan of the best configuration of an outcome."""
    best = outcome.best
    assert best is not None
    graph = best.graph
    mesh = best.configuration.mesh
    simulated = simulator.of(best)
    return Plan(
        autoplan_version=__version__,
        model=model,
        workload=workload,
        cluster=cluster_record(cluster),
        mesh=MeshRecord(
            pp=mesh.pp, dp_replicate=mesh.dp_replicate, dp_shard=mesh.dp_shard, tp=mesh.tp
        ),
        pipeline=PipelineRecord.model_validate(
            {
                "schedule": best.configuration.schedule,
                "microbatches": best.configuration.microbatches,
                "micro_batch_size": best.configuration.micro_batch_size,
                "stages": tuple(StageRecord(first=s.first, last=s.last) for s in best.stages),
            }
        ),
        zero=_ZERO_LEVELS[best.configuration.zero],
        recompute=level_summary(best.levels),
        graph=graph_to_record(
            graph,
            strategies=tuple(solution.strategies for solution in best.point.solutions),
            boundaries=best.point.boundaries,
            placements=_placements(graph, best),
            levels=best.point.levels,
        ),
        prediction=_prediction(graph, workload, cluster, outcome, best, simulated, memory_limit),
        step=None if simulated is None else step_record(simulated.costs),
        baselines=tuple(_baseline_record(baseline) for baseline in baselines),
        considered=_considered(outcome, best, simulator, memory_limit),
        pins=tuple(
            PinRecord(name=name, value=",".join(values)) for name, values in pins.allowed.items()
        ),
        notes=_notes(graph, cluster, best, simulated),
    )


def _placements(graph: Graph, best: Priced) -> dict[str, tuple[Placement, bool]]:
    placements: dict[str, tuple[Placement, bool]] = {}
    for instance in graph.instances:
        solution = best.point.solutions[instance.block_class]
        block = graph.block_class(instance)
        for local, fqn in zip(block.parameters, instance.parameters, strict=True):
            placement, partial = solution.placements.get(local, (Replicate(), False))
            earlier = placements.get(fqn)
            placements[fqn] = (placement, partial or (earlier is not None and earlier[1]))
    return placements


def _prediction(
    graph: Graph,
    workload: WorkloadRecord,
    cluster: Cluster,
    outcome: Outcome,
    best: Priced,
    simulated: Simulated | None,
    memory_limit: int,
) -> PredictionRecord:
    sequences = workload.global_batch
    steps_of_microbatch = best.configuration.microbatches * best.configuration.mesh.dp
    flop = steps_of_microbatch * sum(
        count * sum(op.flop + op.flop_backward for op in block.ops)
        for count, block in zip(class_counts(graph), graph.classes, strict=True)
    )
    peak = matmul_rate(cluster.accelerator, graph.dtype) * cluster.ranks
    tokens = sequences * max(1, workload.seq_len)
    return PredictionRecord.model_validate(
        {
            "step_time": best.step_time,
            "lower_bound": outcome.lower_bound,
            "gap": (best.step_time - outcome.lower_bound) / best.step_time,
            "termination": outcome.termination,
            "tokens_per_second": tokens / best.step_time if workload.seq_len else 0.0,
            "samples_per_second": sequences / best.step_time,
            "mfu": flop / best.step_time / peak,
            "flop_per_step": flop,
            "peak_memory": best.peak_memory,
            "memory_limit": memory_limit,
            "time": _time_parts(best, simulated),
            "stages": tuple(
                MemoryRecord(
                    parameters=s.memory.parameters,
                    gradients=s.memory.gradients,
                    optimizer=s.memory.optimizer,
                    activations=s.memory.activations,
                    transient=s.memory.transient,
                    buffers=s.memory.buffers,
                    peak=s.memory.peak,
                )
                for s in best.stages
            ),
        }
    )


def _time_parts(best: Priced, simulated: Simulated | None) -> TimeRecord:
    """Where the step goes on the busiest stage; the parts sum to the step time."""
    index = max(
        range(len(best.stages)),
        key=lambda i: best.stages[i].time.forward + best.stages[i].time.backward,
    )
    busiest = best.stages[index].time
    exposed_pp = best.pipeline_time - best.unsent_pipeline_time
    if simulated is None:
        busy = best.configuration.microbatches * (busiest.forward + busiest.backward)
        bubble = best.unsent_pipeline_time - busy
    else:
        timeline, optimizer = simulated.timeline, simulated.costs.tails[index].optimizer
        waited = timeline.awaiting_message[index] + timeline.awaiting_ranks[index]
        exposed_pp = min(exposed_pp, timeline.awaiting_message[index])
        bubble = max(0.0, waited - exposed_pp - (best.optimizer - optimizer))
    others = busiest.compute + busiest.recompute + exposed_pp + bubble + best.optimizer
    rest = best.step_time - others
    exposed_tp = min(rest, busiest.exposed_tp + busiest.tail_tp)
    exposed_dp = rest - exposed_tp
    dust = 1e-12 * best.step_time  # of subtractions: no time at all
    exposed_tp, exposed_dp, exposed_pp, bubble = (
        0.0 if abs(part) < dust else part for part in (exposed_tp, exposed_dp, exposed_pp, bubble)
    )
    return TimeRecord(
        compute=busiest.compute,
        recompute=busiest.recompute,
        exposed_tp=exposed_tp,
        exposed_dp=exposed_dp,
        exposed_pp=exposed_pp,
        bubble=bubble,
        optimizer=best.optimizer,
    )


def _baseline_record(baseline: Baseline) -> BaselineRecord:
    priced = baseline.priced
    reason = baseline.reason
    if priced is not None:
        reason = priced.label() + (f" ({reason})" if reason else "")
    return BaselineRecord(
        name=baseline.name,
        step_time=None if priced is None else priced.step_time,
        peak_memory=None if priced is None else priced.peak_memory,
        reason=reason,
    )


def _considered(
    outcome: Outcome, best: Priced, simulator: Simulator, limit: int
) -> tuple[CandidateRecord, ...]:
    priced = sorted(outcome.priced, key=lambda found: found.step_time)
    slower = sorted(outcome.slower, key=lambda found: found.bound)
    records: list[CandidateRecord] = []
    seen: set[tuple[object, ...]] = set()
    shown: tuple[Priced | Slower, ...] = (best, *priced, *slower)
    for found in shown:
        key = (found.configuration.mesh, found.configuration.zero)
        if key in seen or len(records) == _CONSIDERED:
            continue
        seen.add(key)
        if isinstance(found, Slower):
            reason = f"at least {found.bound / best.step_time - 1:.1%} slower"
            records.append(_candidate(found, None, reason))
            continue
        step_time = simulator.timed(found).step_time
        reason = "chosen" if found is best else f"{step_time / best.step_time - 1:.1%} slower"
        records.append(_candidate(found, step_time, reason))
    for overflow in sorted(outcome.overflows, key=_peak)[:2]:
        reason = f"needs {format_bytes(overflow.peak_memory)} of {format_bytes(limit)}"
        records.append(_candidate(overflow, None, reason))
    return tuple(records)


def _candidate(found: Found, step_time: float | None, reason: str) -> CandidateRecord:
    return CandidateRecord(
        label=found.label(), step_time=step_time, peak_memory=found.peak_memory, reason=reason
    )


def _peak(overflow: Overflow) -> int:
    return overflow.peak_memory


def _notes(
    graph: Graph, cluster: Cluster, best: Priced, simulated: Simulated | None
) -> tuple[str, ...]:
    notes = [*graph.notes, *cluster.notes]
    if simulated is None:
        microbatches = best.configuration.microbatches
        notes.append(
            f"step time: by closed forms, as {microbatches} microbatches through "
            f"{len(graph.instances)} blocks are over the {MAX_EVENTS} passes that are simulated"
        )
    priced_by = operators_note(graph, best, cluster.accelerator)
    if priced_by:
        notes.append(priced_by)
    if cluster.accelerator.compiled:
        notes.append(
            "compiled: chains of elementwise operators and norms are priced as fused kernels, from "
            "the device's curves; memory is that of a program that isn't compiled, which keeps "
            "more; whether compiling gains is for a run to say: train.py --compile and --no-compile"
        )
    for note in replicated_notes(rule_coverage(graph, 2)):
        notes.append(f"{note}; add one with autoplan.register_rule")
    if graph.dtype not in dict(cluster.accelerator.matmul_peak):
        notes.append(
            f"{cluster.accelerator.name} has no {graph.dtype} units: matmuls are priced at its "
            "float32 rate"
        )
    links = {link.name: link.sources for link in (cluster.intra, cluster.inter)}
    defaults = [
        field
        for name, sources in {"": cluster.accelerator.sources, **links}.items()
        for source in sources
        if source.provenance.value == "default"
        for field in [f"{name} {source.field}".strip()]
    ]
    if defaults:
        notes.append("default, neither measured nor published: " + ", ".join(defaults))
    return tuple(notes)
