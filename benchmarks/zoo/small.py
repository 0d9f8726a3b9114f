"""The small models of the zoo: solved with a degree fixed, run, and compared in float64."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autoplan.capture import Captured, ModelSource, capture
from autoplan.emit import emit_program
from autoplan.errors import AutoplanError, InfeasibleError, SolverLimitError, VerificationError
from autoplan.ir.hardware import Cluster, Curve
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.solver.search import solve
from autoplan.verify.compare import compare
from autoplan.verify.launch import Finding, run_programs
from autoplan.verify.precision import in_precision
from autoplan.verify.reference import write_reference

__all__ = ["PINS", "capture_small", "divided_flop", "slow_ranks", "solve_pinned", "verify_plans"]

PINS = {"tp2": {"tp": "2"}, "pp2": {"pp": "2", "schedule": "1f1b"}}
BATCH = 4
RANKS = 2
# Seconds of one small search, and of the ranks that run an entry's programs.
SOLVE_LIMIT = 10.0
RUN_LIMIT = 200.0
# Of what the plan takes that is fastest where memory is ample.
MEMORY_SHARE = 0.6
_AMPLE = 2**40
Result = dict[str, Any]
Attempt = Callable[[], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A plan in float64, its program, and the unsharded model's loss and gradients."""

    plan: Plan
    folder: Path
    reference: Path
    loss: float


def slow_ranks(ranks: int, memory: int) -> Cluster:
    """Ranks so slow beside their network that the plan divides all that can be divided.

    Products and memory run at the same efficiency at every size, so half the work takes half
    the time; messages cost next to nothing. ``memory`` is bytes a plan may use.
    """
    cluster = load_cluster(f"cpu:{ranks}")
    flat = Curve(((1.0, 1.0),))
    accelerator = replace(
        cluster.accelerator,
        memory=memory,
        reserved=0,
        fragmentation=0.0,
        matmul_peak=tuple((dtype, 1e6) for dtype, _ in cluster.accelerator.matmul_peak),
        matmul_efficiency=flat,
        memory_bandwidth=1e6,
        memory_efficiency=flat,
        kernel_latency=1e-12,
    )
    link = replace(cluster.intra, latency=1e-12, bandwidth=1e18, measured=())
    return replace(cluster, accelerator=accelerator, intra=link, inter=link)


def solve_pinned(captured: Captured, seq_len: int, pins: Mapping[str, str]) -> tuple[Result, Plan]:
    """Plan of the small model with the degrees of ``pins``, and what the plan divides."""
    started = time.perf_counter()
    workload = WorkloadRecord(
        global_batch=BATCH, seq_len=seq_len, dtype="float32", optimizer="adamw"
    )
    pins = {**pins, "micro_batch_size": "2", "recompute": "none"}

    def solved(memory: float) -> Plan:
        cluster = slow_ranks(RANKS, int(memory))
        return solve(captured, workload, cluster, pins=pins, time_limit=SOLVE_LIMIT)

    plan = solved(_AMPLE)
    if "tp" in pins:
        # So little memory that few parameters can stay whole; then what the leanest needs.
        memory = MEMORY_SHARE * plan.prediction.peak_memory
        for _ in range(2):
            try:
                plan = solved(memory)
                break
            except InfeasibleError as error:
                needed = error.details["needed"]
                assert isinstance(needed, int | float)
                memory = 1.01 * needed
            except SolverLimitError:
                break
    return {
        "solve_seconds": round(time.perf_counter() - started, 1),
        "sharded": sum(p.placement != "R" for p in plan.graph.parameters),
        "parameters": len(plan.graph.parameters),
        "divided_flop": divided_flop(plan),
    }, plan


def divided_flop(plan: Plan) -> float:
    """Share of the FLOP in operators of which the tensor-parallel ranks do a part each."""
    total = divided = 0
    for instance in plan.graph.instances:
        for op in plan.graph.classes[instance.block_class].ops:
            flop = op.flop + op.flop_backward
            total += flop
            placements = (*op.strategy.inputs, *op.strategy.outputs) if op.strategy else ()
            divided += flop * any(p != "R" for p in placements)
    return divided / max(total, 1)


def verify_plans(source: ModelSource, plans: Mapping[str, Plan]) -> dict[str, Result]:
    """What one step of each plan's program found, in one launch of two gloo ranks.

    A program that fails ends the launch; then each has one of its own.
    """
    found: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="autoplan-zoo-") as name:
        work = Path(name)
        jobs: dict[str, _Job] = {}
        for label, plan in plans.items():
            found[label] = _attempt(partial(_prepared, source, plan, work / label, jobs, label))
        try:
            runs = dict(zip(jobs, _run(list(jobs.values()), work / "run"), strict=True))
        except VerificationError:
            runs = {}
        for label, job in jobs.items():
            found[label] = _attempt(partial(_compared, job, runs.get(label), work / f"run-{label}"))
    return found


def _attempt(work: Attempt) -> Result:
    try:
        return work()
    except AutoplanError as error:
        return {"error": " ".join(str(error).split())[:400], "kind": type(error).__name__}


def _prepared(
    source: ModelSource, plan: Plan, folder: Path, jobs: dict[str, _Job], label: str
) -> Result:
    wide = in_precision(plan, "float64")
    emit_program(wide, folder)
    reference = folder.with_suffix(".pt")
    loss = write_reference(source, wide, reference)
    jobs[label] = _Job(plan=wide, folder=folder, reference=reference, loss=loss)
    return {}


def _run(jobs: Sequence[_Job], work: Path) -> list[tuple[Finding, ...]]:
    if not jobs:
        return []
    programs = [(job.folder, job.reference) for job in jobs]
    return run_programs(programs, ranks=RANKS, work=work, timeout=RUN_LIMIT)


def _compared(job: _Job, findings: Sequence[Finding] | None, alone: Path) -> Result:
    """What a job found, in a launch of its own in folder ``alone`` where there is none yet."""
    report = compare(job.plan, findings or _run([job], alone)[0], job.loss)
    return {
        "worst_error": report.worst_error,
        "worst_parameter": report.worst_parameter,
        "loss_error": report.loss_error,
        "tolerance": report.tolerance,
        "zero": list(report.zero),
        "compared": report.compared,
    }


def capture_small(source: ModelSource, seq_len: int) -> Captured:
    """The small model as it trains; the ranks switch off what is drawn by chance."""
    return capture(source, seq_len=seq_len, dtype="float32")
