"""`verify`: one step of a program on CPU ranks against the unsharded model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplan.capture import ModelSource, model_from_record
from autoplan.emit import emit_program
from autoplan.errors import UsageError, VerificationError
from autoplan.ir.graph import aten_name
from autoplan.ir.plan import Plan
from autoplan.plan_file import read_plan
from autoplan.verify.compare import TOLERANCES, VerifyReport, compare
from autoplan.verify.launch import Finding, run_programs
from autoplan.verify.precision import in_precision
from autoplan.verify.reduced import reduced_plan
from autoplan.verify.reference import exact_gradients, write_reference

__all__ = ["MAX_PARAMETERS", "MAX_RANKS", "settle", "verify"]

MAX_RANKS = 8
"""Ranks that one machine is asked to run."""
MAX_PARAMETERS = 60_000_000
"""Elements of the largest model that is verified at its own size."""

# Draws that both sides can't be made to agree on, as dropout and rand are.
_DRAWS = frozenset(
    {"cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
     "normal_functional", "poisson", "randint", "randint_like", "randn", "randn_like", "uniform"}
)  # fmt: skip

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is run: a plan, its model, and the folder that has its program (None: emit it)."""

    plan: Plan
    source: ModelSource
    folder: Path | None
    reduced: str


def verify(
    directory: Path,
    *,
    full: bool = False,
    reduced: bool = False,
    dtype: str = "float32",
    timeout: float = 600.0,
    trust_remote_code: bool = False,
    progress: Progress = lambda message: None,
) -> VerifyReport:
    """Report on the program in ``directory`` (or its plan.json).

    One step over the whole global batch in ``dtype`` (float32, or float64 for a far smaller
    tolerance), dropout off: the loss and every gradient must equal the unsharded model's, or
    VerificationError says which does not. A plan too large for this machine is verified at a
    reduced size, as the report says; ``full`` forbids that and ``reduced`` asks for it.
    ``timeout`` is seconds for the ranks.
    """
    if directory.name == "plan.json":
        directory = directory.parent
    plan = read_plan(directory)
    source = model_from_record(plan.model, trust_remote_code=trust_remote_code)
    if dtype not in TOLERANCES:
        raise UsageError(f"no verification in {dtype!r}", hint=f"one of {', '.join(TOLERANCES)}")
    _refuse_draws(plan)
    subject = _subject(plan, source, directory, full=full, reduced=reduced, dtype=dtype)
    if subject.reduced:
        progress(subject.reduced)
    with tempfile.TemporaryDirectory(prefix="autoplan-verify-") as name:
        work = Path(name)
        folder = subject.folder
        if folder is None:
            folder = work / "program"
            emit_program(subject.plan, folder)
        progress("running the unsharded model")
        reference = work / "reference.pt"
        loss = write_reference(subject.source, subject.plan, reference)
        mesh = subject.plan.mesh
        ranks = mesh.pp * mesh.dp_replicate * mesh.dp_shard * mesh.tp
        progress(f"running the program on {ranks} ranks")
        (findings,) = run_programs(
            [(folder.resolve(), reference)], ranks=ranks, work=work, timeout=timeout
        )
    return settle(subject.plan, subject.source, findings, loss, reduced=subject.reduced)


def _refuse_draws(plan: Plan) -> None:
    classes = plan.graph.classes
    for op in (*plan.graph.shared_ops, *(op for block in classes for op in block.ops)):
        if aten_name(op.target).rstrip("_") in _DRAWS:
            raise UsageError(
                f"{op.target} ({op.module_path or op.name}) draws random numbers: ranks and the "
                "unsharded model draw others, so they can't be compared",
                hint="make the noise an input that batch() returns",
            )


def settle(
    plan: Plan,
    source: ModelSource,
    findings: Sequence[Finding],
    loss: float,
    *,
    reduced: str = "",
) -> VerifyReport:
    """Report of findings; where float32 gradients differ, with a float64 run to judge by."""
    try:
        return compare(plan, findings, loss, reduced=reduced)
    except VerificationError as error:
        if "parameter" not in error.details or plan.graph.dtype == "float64":
            raise
    exact = exact_gradients(source, plan)
    return compare(plan, findings, loss, reduced=reduced, exact=exact)


def _subject(
    plan: Plan, source: ModelSource, directory: Path, *, full: bool, reduced: bool, dtype: str
) -> _Subject:
    mesh = plan.mesh
    ranks = mesh.pp * mesh.dp_replicate * mesh.dp_shard * mesh.tp
    large = ranks > MAX_RANKS or plan.model.num_parameters > MAX_PARAMETERS
    if reduced or (large and not full):
        small = reduced_plan(plan, source, max_parameters=MAX_PARAMETERS)
        return _Subject(
            plan=in_precision(small.plan, dtype),
            source=small.source,
            folder=None,
            reduced=small.note,
        )
    wide = in_precision(plan, dtype)
    note = "" if wide is plan else f"the program was written again in {dtype}"
    return _Subject(
        plan=wide, source=source, folder=directory if wide is plan else None, reduced=note
    )
