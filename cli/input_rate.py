"""The input path of a plan: a stated, measured or computed loader rate, and its step time."""

from __future__ import annotations

from pathlib import Path

from autoplan.ir.plan import InputRecord, Plan

__all__ = ["loader_rate", "with_input"]


def loader_rate(given: float | Path) -> tuple[float, str]:
    """Samples/s of a node's loaders, and where the number is from."""
    if not isinstance(given, Path):
        return given, "stated"

    from autoplan.costs.input import InputStage, input_rate
    from autoplan.profiles.loader import LoaderFile, read_loader

    file = read_loader(given)
    if isinstance(file, LoaderFile):
        return file.rate, f"measured {file.date} with {file.workers} workers: {given.name}"
    stages = [InputStage(rate=s.rate, sequential=s.sequential) for s in file.stages]
    rate = input_rate(
        stages,
        cores=file.cores,
        sample_size=file.sample_size or 0.0,
        disk_bandwidth=file.disk_bandwidth or float("inf"),
    )
    return rate, f"of {len(stages)} stages on {file.cores} cores: {given.name}"


def with_input(plan: Plan, rate: float, source: str) -> Plan:
    """``plan`` with the seconds that the input of a step takes at that rate a node."""
    from autoplan.costs.input import input_step_time

    mesh = plan.mesh
    seconds = input_step_time(
        rate,
        global_batch=plan.workload.global_batch,
        dp=mesh.dp_replicate * mesh.dp_shard,
        ranks_per_node=plan.cluster.ranks_per_node,
    )
    record = InputRecord(rate_per_node=rate, step_time=seconds, source=source)
    return plan.model_copy(update={"input": record})
