"""Findings of the ranks against what must hold: the loss, and every gradient once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.errors import VerificationError
from autoplan.ir.plan import Plan
from autoplan.verify.launch import Finding

__all__ = ["ROUNDING_MARGIN", "TOLERANCE", "VerifyReport", "compare"]

TOLERANCE = 1e-5
"""Largest relative error of the loss and of a gradient, in float32."""
ROUNDING_MARGIN = 4.0
"""How many times the unsharded model's own rounding error a gradient may differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found. Errors are relative to the unsharded model.

    ``compared`` counts parameters, each once; ``rounded`` those over the tolerance by no more
    than the unsharded model's own float32 rounding. ``reduced`` says how the program that ran
    differs from the plan's own (``""``: it is the plan's own).
    """

    name: str
    ranks: int
    loss: float
    expected_loss: float
    loss_error: float
    worst_parameter: str
    worst_error: float
    compared: int
    rounded: int = 0
    reduced: str = ""
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        text = (
            f"{self.name} on {self.ranks} ranks: loss {self.loss:.7g} "
            f"(error {self.loss_error:.1e}), {self.compared} gradients, worst "
            f"{self.worst_error:.1e} ({self.worst_parameter}), tolerance {self.tolerance:.0e}"
        )
        if self.rounded:
            text += (
                f", {self.rounded} beyond it within {ROUNDING_MARGIN:g} x the rounding of the "
                "unsharded model in float32"
            )
        return f"{text}; {self.reduced}" if self.reduced else text


def compare(
    plan: Plan,
    findings: Sequence[Finding],
    expected_loss: float,
    *,
    reduced: str = "",
    rounding: Mapping[str, float] | None = None,
) -> VerifyReport:
    """Report of a program's findings; VerificationError names what differs.

    ``rounding`` is the relative error that the unsharded model's own gradients have.
    """
    errors: dict[str, float] = {}
    for finding in findings:
        for fqn, error in finding.errors.items():
            errors[fqn] = max(error, errors.get(fqn, 0.0))
    trainable = {p.fqn for p in plan.graph.parameters if p.trainable}
    # A parameter that no operator reads has no gradient, in the unsharded model neither.
    read = {fqn for instance in plan.graph.instances for fqn in instance.parameters}
    missing = sorted((trainable & read) - set(errors))
    for finding in findings:
        missing += sorted((set(finding.held) & trainable) - set(finding.errors) - set(missing))
    if missing:
        raise VerificationError(
            f"{len(missing)} of {len(trainable & read)} parameters got no gradient, "
            f"first {missing[0]}",
            details={"missing": ", ".join(missing)},
        )
    if not errors:
        raise VerificationError("the program has no parameter to compare")
    limits = {
        fqn: max(TOLERANCE, ROUNDING_MARGIN * (rounding or {}).get(fqn, 0.0)) for fqn in errors
    }
    worst = max(errors, key=lambda fqn: errors[fqn] / limits[fqn])
    loss = max((f.loss for f in findings), key=lambda value: _error(value, expected_loss))
    report = VerifyReport(
        name=plan.graph.name,
        ranks=len(findings),
        loss=loss,
        expected_loss=expected_loss,
        loss_error=_error(loss, expected_loss),
        worst_parameter=worst,
        worst_error=errors[worst],
        compared=len(errors),
        rounded=sum(TOLERANCE < error <= limits[fqn] for fqn, error in errors.items()),
        reduced=reduced,
    )
    _check(report, sum(error > limits[fqn] for fqn, error in errors.items()))
    return report


def _error(loss: float, expected: float) -> float:
    if not math.isfinite(loss):
        return math.inf
    return abs(loss - expected) / max(abs(expected), 1e-12)


def _check(report: VerifyReport, wrong: int) -> None:
    if wrong:
        raise VerificationError(
            f"gradient of {report.worst_parameter} differs by {report.worst_error:.2e} "
            f"(tolerance {TOLERANCE:.0e}); {wrong} of {report.compared} gradients differ",
            hint="this is a bug of the program or of a sharding rule: report it with plan.json",
            details={"parameter": report.worst_parameter, "error": report.worst_error},
        )
    if report.loss_error > TOLERANCE:
        raise VerificationError(
            f"the loss is {report.loss:.8g}, the unsharded model's {report.expected_loss:.8g} "
            f"(relative error {report.loss_error:.2e}, tolerance {TOLERANCE:.0e})",
            hint="this is a bug of the program or of a sharding rule: report it with plan.json",
            details={"loss": report.loss, "expected": report.expected_loss},
        )
