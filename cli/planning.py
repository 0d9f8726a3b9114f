"""What ``solve`` and ``sweep`` share: the captured model of their arguments, and its plans."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from autoplan.cli.input_rate import loader_rate, with_input
from autoplan.errors import UsageError
from autoplan.ir.fields import Json
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import CorrectionRecord, Plan, WorkloadRecord

if TYPE_CHECKING:
    from autoplan.capture import ModelSource

__all__ = ["DTYPES", "Planning", "default_dtype", "overrides", "pins_of", "sequence_length"]

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}

_Corrected = tuple[Cluster, CorrectionRecord | None, tuple[str, ...]]


class Planning:
    """Plans of the model that the arguments name, captured once; they are as the arguments say.

    Arguments that don't go together are refused at once, a model that can't be captured by
    `capture`.
    """

    def __init__(
        self, args: argparse.Namespace, cluster: Cluster, progress: Callable[[str], None]
    ) -> None:
        self._args, self._progress = args, progress
        self._given = None if args.loader_rate is None else loader_rate(args.loader_rate)
        self.dtype = DTYPES[args.dtype] if args.dtype else default_dtype(cluster)
        _check_masters(args.master_weights, args.optimizer, self.dtype, args.zero)
        self._corrected: dict[str, _Corrected] = {}
        self.capture_time = 0.0

    def capture(self) -> None:
        """Build and trace the model."""
        from autoplan.capture import capture, load_model
        from autoplan.profiles.calibration import load_residuals
        from autoplan.solver.search import Planner

        args, started = self._args, time.perf_counter()
        source = load_model(
            args.model,
            overrides=overrides(args.set),
            trust_remote_code=args.trust_remote_code,
        )
        self.seq_len = sequence_length(source, args.seq_len)
        self._captured = capture(
            source, seq_len=self.seq_len, dtype=self.dtype, progress=self._progress
        )
        self._captured.confirm()
        self._residuals = () if args.profile is None else load_residuals(args.profile)
        self._planner = Planner(self._captured, self._progress)
        self.capture_time = time.perf_counter() - started

    def plan(
        self,
        cluster: Cluster,
        *,
        global_batch: int,
        memory_limit: int | None,
        time_limit: float,
        suggest: bool = True,
    ) -> Plan:
        """Plan of a workload, searched for ``time_limit`` seconds, with what runs say of it.

        Raises as `Planner.plan` does.
        """
        from autoplan.profiles.residuals import calibrate_plan
        from autoplan.solver.search import Planner

        args = self._args
        corrected, correction, notes = self._correct(cluster)
        workload = WorkloadRecord(
            global_batch=global_batch,
            seq_len=self.seq_len,
            dtype=self.dtype,
            optimizer=args.optimizer,
            master_weights=args.master_weights,
            compile=args.compile,
        )

        def search() -> Plan:
            return self._planner.plan(
                workload,
                corrected,
                pins=pins_of(args),
                placements=args.pin,
                stages=args.stages,
                time_limit=time_limit,
                gap=args.gap,
                memory_limit=memory_limit,
                suggest=suggest,
            )

        plan = search()
        while not self._captured.confirm(plan.pipeline.micro_batch_size):
            self._progress("other microbatches do other work: tracing and solving each size")
            self._planner = Planner(self._captured, self._progress)
            plan = search()
        if args.profile is not None:
            given_to = {
                "profile": str(args.profile),
                "correction": correction,
                "notes": (*plan.notes, *notes),
            }
            plan = calibrate_plan(plan.model_copy(update=given_to), self._residuals)
        return plan if self._given is None else with_input(plan, *self._given)

    @property
    def model(self) -> tuple[str, int]:
        """Name of the captured model, and how many parameters it has."""
        return self._captured.at(1).name, self._captured.num_parameters

    def usable_memory(self, cluster: Cluster, asked: int | None) -> int:
        """Bytes of a rank that plans may use of those asked for, or of all."""
        from autoplan.solver.prepare import usable_memory

        return usable_memory(self._correct(cluster)[0], asked)

    def _correct(self, cluster: Cluster) -> _Corrected:
        """Cluster with what runs of the model say of its numbers, and notes of that."""
        if not self._residuals:
            return cluster, None, ()
        if cluster.spec not in self._corrected:
            self._corrected[cluster.spec] = self._correction(cluster)
        return self._corrected[cluster.spec]

    def _correction(self, cluster: Cluster) -> _Corrected:
        from autoplan.profiles import cluster_record
        from autoplan.profiles.correction import (
            correct_cluster,
            correction_note,
            fit_correction,
            why_not_corrected,
        )

        compiled = self._args.compile
        as_run = replace(cluster, accelerator=replace(cluster.accelerator, compiled=compiled))
        key = {
            "model": self._captured.record().digest,
            "hardware": cluster_record(as_run).profile_digest,
            "dtype": self.dtype,
        }
        why = why_not_corrected(self._residuals, **key)
        notes = (why,) if why else ()
        correction = fit_correction(self._residuals, **key)
        if correction is None:
            return cluster, None, notes
        noted = (*notes, correction_note(correction))
        return correct_cluster(cluster, correction), correction, noted


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


def pins_of(args: argparse.Namespace) -> dict[str, str]:
    """Decisions that the user fixed, by name."""
    from autoplan.solver.space import PIN_NAMES

    return {name: getattr(args, name) for name in PIN_NAMES if getattr(args, name) is not None}
