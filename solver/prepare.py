"""From a workload and a cluster to a problem with its space, checked before any search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.errors import UsageError
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import update_rule
from autoplan.ir.plan import WorkloadRecord
from autoplan.solver.candidates import GraphFamily, Problem
from autoplan.solver.pinned import model_pins, pinned_problem, pinned_space
from autoplan.solver.placement_pins import PlacementPin
from autoplan.solver.refusals import refuse_split, require_any
from autoplan.solver.space import Configuration, Pins, parse_pins, permitted_levels
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
    graphs_of: Callable[[tuple[PlacementPin, ...]], GraphFamily],
    workload: WorkloadRecord,
    cluster: Cluster,
    *,
    pins: Mapping[str, str],
    placements: Sequence[str] = (),
    stages: str | None = None,
    gap: float = 0.01,
    memory_limit: int | None = None,
) -> Prepared:
    """What there is to search; UsageError for what can't be asked of the model or the cluster.

    ``graphs_of`` gives the graphs in which copies of a block that placement pins tell apart are
    classes of their own.
    """
    if workload.compile:
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, compiled=True))
    limit = usable_memory(cluster, memory_limit)
    fixed = parse_pins(pins, cluster.ranks, workload.global_batch)
    smallest = graphs_of(())[1]
    if not any(parameter.trainable for parameter in smallest.parameters):
        raise UsageError(
            f"{smallest.name} has no trainable parameter among {len(smallest.parameters)}",
            hint="there is nothing to train: set requires_grad on the parameters to learn",
        )
    fixed = model_pins(fixed, smallest, placements, stages)
    if not permitted_levels(smallest, fixed):
        raise UsageError(
            f"{smallest.name} has recurrent layers, which can't be recomputed selectively",
            hint="--recompute full, or leave it to the planner",
        )
    asked = Problem(
        graphs=graphs_of(fixed.placements),
        cluster=cluster,
        global_batch=workload.global_batch,
        update=update_rule(workload.optimizer, master=workload.master_weights == "float32"),
        memory_limit=limit,
        deadline=math.inf,
        gap=gap,
    )
    problem = pinned_problem(asked, fixed, math.inf)
    space = pinned_space(problem, fixed)
    refuse_split(problem, fixed)
    require_any(space, problem, fixed)
    free = pinned_space(problem, Pins({})) if fixed.each() else space
    return Prepared(
        workload=workload, problem=problem, pins=fixed, space=tuple(space), free=tuple(free)
    )


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
