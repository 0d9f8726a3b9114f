"""From a workload and a cluster to a problem with its space, checked before any search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoplan.errors import UsageError
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule, update_rule
from autoplan.ir.plan import WorkloadRecord
from autoplan.solver.candidates import GraphFamily, Problem
from autoplan.solver.refusals import require_any
from autoplan.solver.space import Configuration, Pins, configurations, parse_pins, permitted_levels
from autoplan.units import format_bytes

__all__ = ["Prepared", "prepare", "usable_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A problem without a deadline, and its space: pinned, and ``free`` of pins."""

    workload: WorkloadRecord
    problem: Problem
    pins: Pins
    space: tuple[Configuration, ...]
    free: tuple[Configuration, ...]


def prepare(
    graphs: GraphFamily,
    workload: WorkloadRecord,
    cluster: Cluster,
    *,
    pins: Mapping[str, str],
    gap: float = 0.01,
    memory_limit: int | None = None,
) -> Prepared:
    """What there is to search; UsageError for what can't be asked of the model or the cluster."""
    if workload.compile:
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, compiled=True))
    limit = usable_memory(cluster, memory_limit)
    fixed = parse_pins(pins, cluster.ranks, workload.global_batch)
    smallest = graphs[1]
    if not any(parameter.trainable for parameter in smallest.parameters):
        raise UsageError(
            f"{smallest.name} has no trainable parameter among {len(smallest.parameters)}",
            hint="there is nothing to train: set requires_grad on the parameters to learn",
        )
    levels = permitted_levels(smallest, fixed)
    if not levels:
        raise UsageError(
            f"{smallest.name} has recurrent layers, which can't be recomputed selectively",
            hint="--recompute full, or leave it to the planner",
        )
    blocks = len(smallest.instances)
    update = update_rule(workload.optimizer, master=workload.master_weights == "float32")

    def space_of(allowed: Pins) -> tuple[Configuration, ...]:
        everything = configurations(
            ranks=cluster.ranks,
            global_batch=workload.global_batch,
            max_stages=blocks,
            pins=allowed,
        )
        return tuple(c for c in everything if _runs(c, update))

    space = space_of(fixed)
    require_any(space, fixed, cluster.ranks, workload.global_batch, blocks)
    problem = Problem(
        graphs=graphs,
        cluster=cluster,
        global_batch=workload.global_batch,
        update=update,
        memory_limit=limit,
        deadline=math.inf,
        levels=levels,
        gap=gap,
    )
    free = space_of(Pins({})) if fixed.allowed else space
    return Prepared(workload=workload, problem=problem, pins=fixed, space=space, free=free)


def _runs(configuration: Configuration, update: UpdateRule) -> bool:
    """Whether the runtime has the update rule: FSDP2's shards are float32 masters themselves."""
    return update.master or configuration.zero <= 1


def usable_memory(cluster: Cluster, asked: int | None) -> int:
    """Bytes of a rank that a plan may use; UsageError when more are asked than the device has."""
    usable = cluster.accelerator.usable_memory
    if asked is None:
        return usable
    if asked > cluster.accelerator.memory:
        raise UsageError(
            f"--memory-limit {format_bytes(asked)} exceeds the "
            f"{format_bytes(cluster.accelerator.memory)} of {cluster.accelerator.name}",
            hint=f"the default is {format_bytes(usable)} usable",
        )
    return asked
