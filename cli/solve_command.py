"""``autoplan solve``: model and cluster to plan, report and program."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from autoplan.cli.input_rate import loader_rate, with_input
from autoplan.cli.outcome import Outcome, Progress
from autoplan.cli.writable import require_writable_place
from autoplan.errors import UsageError
from autoplan.ir.fields import Json
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import CorrectionRecord, Plan, WorkloadRecord

if TYPE_CHECKING:
    from autoplan.capture import Captured, ModelSource
    from autoplan.profiles.residuals import Residual

__all__ = ["DTYPES", "default_dtype", "overrides", "run", "sequence_length", "write_program"]

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def run(args: argparse.Namespace) -> Outcome:
    """Solve, and write the program when ``-o`` is given."""
    from autoplan.capture import capture, load_model
    from autoplan.profiles import load_cluster
    from autoplan.profiles.calibration import load_residuals
    from autoplan.profiles.residuals import calibrate_plan
    from autoplan.report.summary import plan_summary
    from autoplan.solver.search import solve

    given = None if args.loader_rate is None else loader_rate(args.loader_rate)
    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    cluster = load_cluster(args.cluster, profile=args.profile)
    if args.output is not None:
        _require_writable(args.output)
    dtype = DTYPES[args.dtype] if args.dtype else default_dtype(cluster)
    _check_masters(args.master_weights, args.optimizer, dtype, args.zero)
    started = time.perf_counter()
    try:
        source = load_model(
            args.model,
            overrides=overrides(args.set),
            trust_remote_code=args.trust_remote_code,
        )
        seq_len = sequence_length(source, args.seq_len)
        captured = capture(source, seq_len=seq_len, dtype=dtype, progress=progress)
        captured.confirm()
        captured_at = time.perf_counter()
        residuals = () if args.profile is None else load_residuals(args.profile)
        cluster, correction, notes = _corrected(cluster, residuals, captured, dtype, args.compile)
        workload = WorkloadRecord(
            global_batch=args.global_batch,
            seq_len=seq_len,
            dtype=dtype,
            optimizer=args.optimizer,
            master_weights=args.master_weights,
            compile=args.compile,
        )

        def search() -> Plan:
            return solve(
                captured,
                workload,
                cluster,
                pins=_pins(args),
                placements=args.pin,
                stages=args.stages,
                time_limit=args.time_limit,
                gap=args.gap,
                memory_limit=args.memory_limit,
                progress=progress,
            )

        plan = search()
        while not captured.confirm(plan.pipeline.micro_batch_size):
            progress("other microbatches do other work: tracing and solving each size")
            plan = search()
        solved_at = time.perf_counter()
        if args.profile is not None:
            given_to = {
                "profile": str(args.profile),
                "correction": correction,
                "notes": (*plan.notes, *notes),
            }
            plan = calibrate_plan(plan.model_copy(update=given_to), residuals)
        if given is not None:
            plan = with_input(plan, *given)
        if args.output is not None:
            progress("writing the program")
            write_program(plan, args.output)
    finally:
        progress.close()
    capture_time, solve_time = captured_at - started, solved_at - captured_at
    document = plan_summary(plan, capture_time=capture_time, solve_time=solve_time)
    document["output"] = None if args.output is None else str(args.output)
    where = "" if args.output is None else str(args.output)
    return Outcome(document=document, render=_render(plan, where, capture_time, solve_time))


def _corrected(
    cluster: Cluster,
    residuals: Sequence[Residual],
    captured: Captured,
    dtype: str,
    compiled: bool,
) -> tuple[Cluster, CorrectionRecord | None, tuple[str, ...]]:
    """Cluster with what runs of the model say of its numbers, and notes of that."""
    if not residuals:
        return cluster, None, ()
    from autoplan.profiles import cluster_record
    from autoplan.profiles.correction import (
        correct_cluster,
        correction_note,
        fit_correction,
        why_not_corrected,
    )

    as_run = replace(cluster, accelerator=replace(cluster.accelerator, compiled=compiled))
    key = {
        "model": captured.record().digest,
        "hardware": cluster_record(as_run).profile_digest,
        "dtype": dtype,
    }
    why = why_not_corrected(residuals, **key)
    notes = (why,) if why else ()
    correction = fit_correction(residuals, **key)
    if correction is None:
        return cluster, None, notes
    return correct_cluster(cluster, correction), correction, (*notes, correction_note(correction))


def _render(
    plan: Plan, where: str, capture_time: float, solve_time: float
) -> Callable[[TextIO], None]:
    def render(stream: TextIO) -> None:
        from autoplan.report.terminal import print_report

        print_report(plan, stream, where=where, capture_time=capture_time, solve_time=solve_time)

    return render


def _check_masters(masters: str, optimizer: str, dtype: str, zero: str | None) -> None:
    """Raise for what training without float32 masters can't be combined with."""
    if masters == "float32":
        return
    if dtype == "float32":
        raise UsageError(
            "--master-weights none is of bf16 models: float32 parameters have no other masters",
            hint="add --dtype bf16, or leave it out",
        )
    if not optimizer.startswith("adamw"):
        raise UsageError(
            f"--master-weights none needs an optimizer that rounds stochastically, {optimizer} "
            "doesn't",
            hint="use --optimizer adamw, adamw-bf16 or adamw-8bit",
        )
    if zero is not None and not {"0", "1"} & {*zero.split(",")}:
        raise UsageError(
            f"--master-weights none with --zero {zero}: FSDP2 shards are float32 and are what is "
            "updated",
            hint="use --zero 0 or 1, or --master-weights float32",
        )


def default_dtype(cluster: Cluster) -> str:
    """``bfloat16`` on an accelerator that has a rate for it; else, and on a CPU, ``float32``."""
    rates = dict(cluster.accelerator.matmul_peak)
    on_cpu = cluster.spec.startswith("cpu") or cluster.accelerator.name.lower().startswith("cpu")
    return "bfloat16" if "bfloat16" in rates and not on_cpu else "float32"


def sequence_length(source: ModelSource, asked: int | None) -> int:
    """Tokens a sequence; 0 for a model whose inputs don't depend on it."""
    if not source.has_sequences():
        return 0
    if asked is not None:
        source.batch(2, asked, device="meta")  # refuses a length beyond the model's own
        return asked
    longest = source.longest_sequence()
    if longest is None:
        raise UsageError(f"{source.spec} names no sequence length", hint="give one: --seq-len 1024")
    return longest


def overrides(assignments: list[tuple[str, str]]) -> dict[str, Json]:
    """Values of ``--set``: JSON where it parses (``2``, ``true``), else the text itself."""
    values: dict[str, Json] = {}
    for key, text in assignments:
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values


def _pins(args: argparse.Namespace) -> Mapping[str, str]:
    from autoplan.solver.space import PIN_NAMES

    return {name: getattr(args, name) for name in PIN_NAMES if getattr(args, name) is not None}


def _require_writable(directory: Path) -> None:
    """Raise before the search starts when the program can't be written to ``directory``."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"-o {directory}: exists and is no folder", hint="name a new folder")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / "plan.json").exists():
        raise UsageError(
            f"-o {directory}: the folder has other files and no plan.json",
            hint="name a new or empty folder, so that nothing of yours is overwritten",
        )
    require_writable_place(directory / "plan.json", hint="name another folder")


def write_program(plan: Plan, directory: Path) -> list[Path]:
    """Paths of the program's files, written to ``directory`` if nothing of the user's is there."""
    from autoplan.emit import emit_program

    _require_writable(directory)
    return emit_program(plan, directory)
