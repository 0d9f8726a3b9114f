"""``autoplan explain``: why a plan is as it is, and what the runner-up costs."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from autoplan.cli.outcome import Outcome, Progress
from autoplan.errors import InputError, UsageError
from autoplan.ir.hardware import Cluster
from autoplan.ir.names import near_matches
from autoplan.ir.plan import Plan

__all__ = ["run"]

_WIDTH = 100


def run(args: argparse.Namespace) -> Outcome:
    """Explain a parameter, an operator or a degree; what the plan hasn't got is a UsageError."""
    from autoplan.plan_checks import require_sound
    from autoplan.plan_file import plan_path, read_plan

    path = plan_path(args.plan)
    plan = read_plan(path)
    require_sound(plan, path)
    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    try:
        cluster = _cluster(plan, path)
        if "=" in args.target:
            return _degree(args, plan, cluster, progress)
        return _placements(args, plan, cluster)
    finally:
        progress.close()


def _placements(args: argparse.Namespace, plan: Plan, cluster: Cluster) -> Outcome:
    from autoplan.report.explanation import placement_lines, placements_document
    from autoplan.solver.explain import explain_placements
    from autoplan.solver.planned import PlannedModel

    if plan.model.form == "file":
        from autoplan.capture import model_from_record

        # The file may have rules of its own for operators.
        model_from_record(plan.model, trust_remote_code=args.trust_remote_code)
    model = PlannedModel(plan, cluster)
    found = explain_placements(model, args.target)
    note = _repriced(plan, model.priced().step_time)
    document = {**placements_document(found), "notes": [note] if note else []}
    blocks = [line for one in found for line in (*placement_lines(one), "")]
    return Outcome(
        document=document,
        render=lambda stream: _write(stream, [*blocks, *([note] if note else [])]),
    )


def _repriced(plan: Plan, seconds: float) -> str:
    """Note where this version of autoplan prices the plan otherwise than its maker did."""
    said = plan.prediction.step_time
    if abs(seconds - said) <= 1e-6 * said:
        return ""
    return (
        f"note: the step takes {seconds:.6g} s by this autoplan, {said:.6g} s by version "
        f"{plan.autoplan_version}, which made the plan; differences are by this one"
    )


def _degree(args: argparse.Namespace, plan: Plan, cluster: Cluster, progress: Progress) -> Outcome:
    from autoplan.solver.space import PIN_NAMES, parse_pins

    name, _, value = args.target.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if name not in PIN_NAMES:
        raise UsageError(
            f"{args.target}: {name} is no decision of a plan",
            hint=near_matches(name, PIN_NAMES, what="decisions"),
        )
    parse_pins({name: value}, cluster.ranks, plan.workload.global_batch)  # told before the capture

    from autoplan.capture import capture, model_from_record
    from autoplan.report.explanation import degree_document, degree_lines
    from autoplan.solver.explain_degree import explain_degree

    source = model_from_record(plan.model, trust_remote_code=args.trust_remote_code)
    workload = plan.workload
    captured = capture(source, seq_len=workload.seq_len, dtype=workload.dtype, progress=progress)
    if captured.record().digest != plan.model.digest:
        raise InputError(
            f"{plan.model.spec} is captured otherwise than when the plan was made",
            hint="other versions of autoplan, torch or transformers made it: solve again",
        )
    found = explain_degree(
        captured,
        plan,
        cluster,
        name,
        value.strip(),
        time_limit=args.time_limit,
        progress=progress,
    )
    return Outcome(
        document=degree_document(found),
        render=lambda stream: _write(stream, degree_lines(found)),
    )


def _cluster(plan: Plan, path: Path) -> Cluster:
    """The cluster that a plan was priced on; `InputError` where its numbers have changed."""
    from autoplan.profiles import cluster_record, load_cluster
    from autoplan.profiles.correction import correct_cluster

    profile = Path(plan.profile) if plan.profile else None
    cluster = load_cluster(plan.cluster.spec, profile=profile)
    if plan.correction is not None:
        cluster = correct_cluster(cluster, plan.correction)
    if plan.workload.compile:
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, compiled=True))
    if cluster_record(cluster).digest != plan.cluster.digest:
        raise InputError(
            f"{path}: the numbers of {plan.cluster.spec} have changed since the plan was made",
            hint="solve again, or put the profile or cluster file back",
        )
    return cluster


def _write(stream: TextIO, lines: list[str]) -> None:
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4) if line.startswith(" ") else " " * 12
        for piece in textwrap.wrap(line, _WIDTH, subsequent_indent=indent) or [""]:
            stream.write(piece + "\n")
