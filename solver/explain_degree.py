"""Why a plan has a degree, or another decision about the whole plan: the search with it changed."""

from __future__ import annotations

import time
from collections.abc import Callable

from autoplan.ir.explanation import DegreeExplanation, WholePlan
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import update_rule
from autoplan.ir.plan import Plan
from autoplan.ir.recompute import Recompute
from autoplan.solver.assemble import time_parts
from autoplan.solver.candidates import GraphFamily, Problem
from autoplan.solver.explore import Searcher
from autoplan.solver.infeasible import leanest
from autoplan.solver.pinned import model_pins, pinned_problem, pinned_space
from autoplan.solver.placement_pins import pinned_graph
from autoplan.solver.planned import plan_pins
from autoplan.solver.pricing import Overflow, Priced
from autoplan.solver.refusals import require_any
from autoplan.solver.search import CapturedModel
from autoplan.solver.space import divisors, parse_pins
from autoplan.solver.timing import Simulator

__all__ = ["explain_degree"]

_MEMORY = ("parameters", "gradients", "optimizer", "activations", "transient", "buffers")


def explain_degree(
    captured: CapturedModel,
    plan: Plan,
    cluster: Cluster,
    name: str,
    value: str,
    *,
    time_limit: float,
    progress: Callable[[str], None] | None = None,
) -> DegreeExplanation:
    """The plan against the best that has the value, or against the best without if it has it.

    Other decisions that the user fixed stay so. UsageError for a value that can't be at all.
    """
    pins, placements, stages = plan_pins(plan)
    parse_pins({name: value}, cluster.ranks, plan.workload.global_batch)
    chosen = set(_values(plan, name)) <= {part.strip() for part in value.split(",")}
    others = [v for v in _legal(plan, cluster, name) if v not in _values(plan, name)]
    pins[name] = ",".join(others) if chosen else value
    if name == "pp":
        stages = None
    whole = _planned(plan)
    limit = plan.prediction.memory_limit
    if chosen and not others:
        return DegreeExplanation(
            name=name,
            value=value,
            chosen=True,
            plan=whole,
            other=None,
            needed=0,
            memory_limit=limit,
            reason="nothing else is legal on this cluster",
            proved=True,
        )
    fixed = parse_pins(pins, cluster.ranks, plan.workload.global_batch)
    fixed = model_pins(fixed, captured.at(1), placements, stages)
    workload = plan.workload
    update = update_rule(workload.optimizer, master=workload.master_weights == "float32")
    asked = Problem(
        graphs=GraphFamily(lambda size: pinned_graph(captured.at(size), fixed.placements)),
        cluster=cluster,
        global_batch=workload.global_batch,
        update=update,
        memory_limit=limit,
        deadline=0.0,
    )
    problem = pinned_problem(asked, fixed, time.monotonic() + time_limit)
    space = pinned_space(problem, fixed)
    require_any(space, problem, fixed)
    searcher = Searcher(problem, progress)
    outcome = searcher.run(space, phase=f"{name} {pins[name]}")
    simulator = Simulator(cluster, update)
    other: WholePlan | None = None
    needed, reason = 0, ""
    if outcome.best is not None:
        other = _found(simulator.fastest([outcome.best, *outcome.priced]), simulator)
    elif outcome.termination == "interrupted":
        raise KeyboardInterrupt
    elif outcome.termination == "time_limit":
        reason = f"no such plan was found in {time_limit:g} s"
    else:
        least = leanest(searcher, space, outcome)
        needed = least if isinstance(least, int) else least.peak_memory
        reason = "does not fit"
        other = None if isinstance(least, int) else _too_large(least)
    return DegreeExplanation(
        name=name,
        value=value,
        chosen=chosen,
        plan=whole,
        other=other,
        needed=needed,
        memory_limit=limit,
        reason=reason,
        proved=outcome.termination == "optimal",
    )


def _values(plan: Plan, name: str) -> list[str]:
    """What the plan has; of recompute, every level of a block."""
    if name == "recompute":
        return sorted(set(plan.graph.levels))
    if name == "schedule":
        return [plan.pipeline.schedule]
    if name == "micro_batch_size":
        return [str(plan.pipeline.micro_batch_size)]
    return [str(plan.zero if name == "zero" else plan.mesh.model_dump()[name])]


def _legal(plan: Plan, cluster: Cluster, name: str) -> list[str]:
    if name == "recompute":
        return [level.value for level in Recompute]
    if name == "schedule":
        return ["gpipe", "1f1b"]
    if name == "zero":
        return ["0", "1", "2", "3"]
    whole = plan.workload.global_batch if name == "micro_batch_size" else cluster.ranks
    return [str(divisor) for divisor in divisors(whole)]


def _planned(plan: Plan) -> WholePlan:
    prediction = plan.prediction
    label = next((c.label for c in plan.considered if c.reason == "chosen"), "the plan")
    fullest = max(prediction.stages, key=lambda stage: stage.peak)
    return WholePlan(
        label=label,
        step_time=prediction.step_time,
        peak_memory=prediction.peak_memory,
        time=tuple(prediction.time.model_dump().items()),
        memory=tuple((part, getattr(fullest, part)) for part in _MEMORY),
    )


def _found(best: Priced, simulator: Simulator) -> WholePlan:
    fullest = max((stage.memory for stage in best.stages), key=lambda memory: memory.peak)
    return WholePlan(
        label=best.label(),
        step_time=best.step_time,
        peak_memory=best.peak_memory,
        time=tuple(time_parts(best, simulator.of(best)).model_dump().items()),
        memory=tuple((part, getattr(fullest, part)) for part in _MEMORY),
    )


def _too_large(least: Overflow) -> WholePlan:
    return WholePlan(
        label=least.label(),
        step_time=0.0,
        peak_memory=least.peak_memory,
        time=(),
        memory=tuple((part, getattr(least.memory, part)) for part in _MEMORY),
    )
