"""The plan as one JSON document: stable keys, SI units, no NaN."""

from __future__ import annotations

from collections import Counter

from autoplan.ir.levels import level_runs
from autoplan.ir.plan import BaselineRecord, PinRecord, Plan
from autoplan.report.timeline import timeline_summary
from autoplan.units import format_count

__all__ = ["input_message", "pin_cost_message", "plan_summary", "provenance_counts"]

_NO_COST = 5e-4  # of a step: nothing in the digits shown


def plan_summary(
    plan: Plan, *, capture_time: float | None = None, solve_time: float | None = None
) -> dict[str, object]:
    """Document for ``--json``: seconds, bytes, FLOP.

    The two times are those of the run at hand; they're no part of a plan, so that equal
    input gives an equal file, and ``None`` when a plan is read back.
    """
    prediction = plan.prediction
    return {
        "schema_version": plan.schema_version,
        "autoplan_version": plan.autoplan_version,
        "model": {
            "name": plan.graph.name,
            "spec": plan.model.spec,
            "num_parameters": plan.model.num_parameters,
            "digest": plan.model.digest,
        },
        "workload": plan.workload.model_dump(mode="json"),
        "cluster": {
            "spec": plan.cluster.spec,
            "accelerator": plan.cluster.accelerator,
            "nodes": plan.cluster.nodes,
            "ranks_per_node": plan.cluster.ranks_per_node,
            "memory": plan.cluster.memory,
            "digest": plan.cluster.digest,
            "profile_digest": plan.cluster.profile_digest,
        },
        "step_time": prediction.step_time,
        "lower_bound": prediction.lower_bound,
        "gap": prediction.gap,
        "termination": prediction.termination,
        "tokens_per_second": prediction.tokens_per_second,
        "samples_per_second": prediction.samples_per_second,
        "mfu": prediction.mfu,
        "flop_per_step": prediction.flop_per_step,
        "peak_memory": prediction.peak_memory,
        "memory_limit": prediction.memory_limit,
        "profile": plan.profile,
        "calibration": None
        if plan.calibration is None
        else plan.calibration.model_dump(mode="json"),
        "input": _input(plan),
        "mesh": plan.mesh.model_dump(mode="json"),
        "pipeline": {
            "schedule": plan.pipeline.schedule,
            "microbatches": plan.pipeline.microbatches,
            "micro_batch_size": plan.pipeline.micro_batch_size,
            "virtual_stages": plan.virtual_stages,
            "stages": [
                {"first": stage.first, "last": stage.last} for stage in plan.pipeline.stages
            ],
        },
        "zero": plan.zero,
        "recompute": plan.recompute,
        "recompute_by_block": [
            {"level": level, "first": first, "last": last}
            for level, first, last in level_runs(plan.graph.levels)
        ],
        "time": prediction.time.model_dump(mode="json"),
        "timeline": timeline_summary(plan),
        "memory": [stage.model_dump(mode="json") for stage in prediction.stages],
        "baselines": {baseline.name: _baseline(baseline) for baseline in plan.baselines},
        "considered": [candidate.model_dump(mode="json") for candidate in plan.considered],
        "pins": {pin.name: pin.value for pin in plan.pins},
        "pin_costs": [
            {
                **pin.model_dump(mode="json"),
                "cost": None
                if pin.free_step_time is None
                else prediction.step_time / pin.free_step_time - 1,
            }
            for pin in plan.pins
        ],
        "notes": list(plan.notes),
        "capture_time": capture_time,
        "solve_time": solve_time,
        "provenance": {
            "counts": provenance_counts(plan),
            "sources": [source.model_dump(mode="json") for source in plan.cluster.sources],
        },
    }


def pin_cost_message(plan: Plan, pin: PinRecord) -> str:
    """What a decision of the user costs against the free choice; empty where that is unknown."""
    if pin.free_step_time is None:
        return ""
    cost = plan.prediction.step_time / pin.free_step_time - 1
    if cost > _NO_COST:
        least = "" if pin.proved else "at least "
        return f"costs {least}{cost:+.1%} against {pin.free_plan}"
    return "costs nothing" if pin.proved else "nothing faster found without it in time"


def provenance_counts(plan: Plan) -> dict[str, int]:
    """How many hardware numbers were measured, come from the catalogue, or are defaults."""
    counts = Counter(source.provenance for source in plan.cluster.sources)
    return {kind: counts[kind] for kind in ("measured", "catalogue", "default")}


def _baseline(baseline: BaselineRecord) -> float | str:
    if baseline.step_time is None:
        return baseline.reason or "not priced"
    return baseline.step_time


def input_message(plan: Plan) -> str:
    """What the input path means for the plan, in one line; empty when nothing is known of it."""
    if plan.input is None:
        return ""
    samples = plan.workload.global_batch
    given = format_count(samples / plan.input.step_time)
    wanted = format_count(samples / plan.expected_step_time)
    if plan.is_input_bound:
        return f"input-bound: the loader gives {given} samples/s, the plan could take {wanted}"
    return f"the loader gives {given} samples/s, the plan takes {wanted}"


def _input(plan: Plan) -> dict[str, object] | None:
    if plan.input is None:
        return None
    return plan.input.model_dump(mode="json") | {
        "bound": plan.is_input_bound,
        "samples_per_second": plan.workload.global_batch / plan.input.step_time,
        "plan_samples_per_second": plan.workload.global_batch / plan.expected_step_time,
        "effective_step_time": plan.effective_step_time,
        "message": input_message(plan),
    }
