"""A plan says how much of its compute time was measured."""

from __future__ import annotations

from dataclasses import replace

from autoplan.capture import Captured
from autoplan.ir.hardware import Cluster, MeasuredOperators, Provenance, Source
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiler.targets import find_targets
from autoplan.profiles import load_cluster
from autoplan.report.terminal import report_lines
from autoplan.solver.search import solve

WORKLOAD = WorkloadRecord(global_batch=2, seq_len=32, dtype="bfloat16", optimizer="adamw")
PINS = {"tp": "1", "pp": "1", "micro_batch_size": "1", "recompute": "none"}


def cluster_with(operators: dict[str, tuple[float, float]] | None) -> Cluster:
    cluster = load_cluster("cpu:2")
    known = None if operators is None else MeasuredOperators(operators)
    return replace(cluster, accelerator=replace(cluster.accelerator, operators=known))


def plan_of(model: Captured, cluster: Cluster) -> Plan:
    return solve(model, WORKLOAD, cluster, pins=PINS)


def notes_of(plan: Plan) -> list[str]:
    return [note for note in plan.notes if note.startswith("operators: ")]


def test_a_plan_says_what_share_was_measured(small_model: Captured) -> None:
    targets = find_targets([small_model.at(1)], (1,))
    plan = plan_of(small_model, cluster_with({t.signature: (1.0, 2.0) for t in targets}))
    graph = small_model.at(1)
    measured = {t.op.target for t in targets}
    count = sum(
        op.target in measured
        for instance in graph.instances
        for op in graph.block_class(instance).ops
    )
    assert abs(plan.prediction.time.compute / (3.0 * count) - 1) < 0.1
    # The sums of gradients that two operators give are no operator of their own.
    (note,) = notes_of(plan)
    assert note == (
        "operators: 99% of compute time measured on this machine, the rest from its curves"
    )
    assert any("99% of compute time measured" in line for line in report_lines(plan))


def test_nothing_of_the_plan_was_measured(small_model: Captured) -> None:
    (note,) = notes_of(plan_of(small_model, cluster_with({"aten.none()": (1.0, 1.0)})))
    assert note.startswith("operators: 0% of compute time measured")


def test_no_profile_no_note(small_model: Captured) -> None:
    assert not notes_of(plan_of(small_model, cluster_with(None)))


def test_curves_alone_are_said_to_be_curves(small_model: Captured) -> None:
    cluster = cluster_with(None)
    sources = (Source("matmul_efficiency", Provenance.MEASURED, "here"),)
    accelerator = replace(cluster.accelerator, sources=sources)
    (note,) = notes_of(plan_of(small_model, replace(cluster, accelerator=accelerator)))
    assert "none measured" in note and "autoplan profile MODEL" in note
