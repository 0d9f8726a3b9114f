"""Findings of the ranks against what must hold: the loss, and every gradient once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autoplan.errors import VerificationError
from autoplan.ir.plan import Plan
from autoplan.verify.launch import Finding
from autoplan.verify.reference import ExactGradient

__all__ = ["ROUNDING_MARGIN", "TOLERANCE", "TOLERANCES", "VerifyReport", "compare"]

TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
"""Largest relative error of the loss and of a gradient in a program of the dtype."""
TOLERANCE = TOLERANCES["float32"]
ROUNDING_MARGIN = 4.0
"""How many times the unsharded model's own rounding error a gradient may differ by."""
MOST_ROUNDING = 1e-3
"""Largest relative error of a float32 gradient that can pass as rounding."""
_ZERO = 1e-12
"""A float64 gradient below this part of the model's median one is zero but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found. Errors are relative to the unsharded model.

    ``compared`` counts parameters, each once. The worst of them leaves two kinds out:
    ``zero``, whose gradient is zero in mathematics (the bias of attention's keys), so that it
    has no relative error and must be small beside the model's median gradient; and
    ``rounded``, over the tolerance by no more than the unsharded model's own float32 rounding.
    ``reduced`` says how the program that ran differs from the plan's own (``""``: it does not).
    """

    name: str
    ranks: int
    loss: float
    expected_loss: float
    loss_error: float
    worst_parameter: str
    worst_error: float
    compared: int
    rounded: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
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
                f", {len(self.rounded)} beyond it within {ROUNDING_MARGIN:g} x the rounding of "
                f"the unsharded model in float32: {_few(self.rounded)}"
            )
        if self.zero:
            text += f", {len(self.zero)} zero up to rounding: {_few(self.zero)}"
        return f"{text}; {self.reduced}" if self.reduced else text


def compare(
    plan: Plan,
    findings: Sequence[Finding],
    expected_loss: float,
    *,
    reduced: str = "",
    exact: Mapping[str, ExactGradient] | None = None,
) -> VerifyReport:
    """Report of a program's findings; VerificationError names what differs.

    ``exact`` are the unsharded model's float64 gradients, for a program in float32.
    """
    errors: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for finding in findings:
        for fqn, error in finding.errors.items():
            errors[fqn] = max(error, errors.get(fqn, 0.0))
            sizes[fqn] = finding.sizes[fqn]
    _check_complete(plan, findings, errors)
    _check_reference(plan.graph.name, expected_loss, sizes, exact or {})
    tolerance = TOLERANCES[plan.graph.dtype]
    typical = median([size for size in sizes.values() if size > 0.0] or [0.0])
    true_sizes = sizes if plan.graph.dtype == "float64" else _true_sizes(sizes, exact or {})
    zero = {fqn for fqn, size in true_sizes.items() if size <= _ZERO * typical}
    limits = {}
    for fqn, size in sizes.items():
        rounding = exact[fqn].rounding if exact and fqn in exact else 0.0
        limits[fqn] = tolerance * (typical if fqn in zero else size)
        if fqn not in zero:
            allowed = min(ROUNDING_MARGIN * rounding, MOST_ROUNDING * size)
            limits[fqn] = max(limits[fqn], allowed)
    wrong = [fqn for fqn, error in errors.items() if not error <= limits[fqn]]

    def relative(fqn: str) -> float:
        return errors[fqn] / max(typical if fqn in zero else sizes[fqn], 1e-300)

    rounded = {fqn for fqn in errors if fqn not in (*zero, *wrong) and relative(fqn) > tolerance}
    plain = [fqn for fqn in errors if fqn not in zero | rounded] or sorted(errors)
    worst = max(wrong or plain, key=relative)
    loss = max((f.loss for f in findings), key=lambda value: _error(value, expected_loss))
    report = VerifyReport(
        name=plan.graph.name,
        ranks=len(findings),
        loss=loss,
        expected_loss=expected_loss,
        loss_error=_error(loss, expected_loss),
        worst_parameter=worst,
        worst_error=relative(worst),
        compared=len(errors),
        rounded=tuple(sorted(rounded)),
        zero=tuple(sorted(zero)),
        reduced=reduced,
        tolerance=tolerance,
    )
    _check(report, len(wrong))
    return report


def _true_sizes(sizes: Mapping[str, float], exact: Mapping[str, ExactGradient]) -> dict[str, float]:
    return {fqn: exact[fqn].size if fqn in exact else size for fqn, size in sizes.items()}


def _check_complete(plan: Plan, findings: Sequence[Finding], errors: Mapping[str, float]) -> None:
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


def _check_reference(
    name: str, loss: float, sizes: Mapping[str, float], exact: Mapping[str, ExactGradient]
) -> None:
    """Nothing can be compared with numbers that are not finite."""
    found = {"the loss": loss, **{f"the gradient of {fqn}": size for fqn, size in sizes.items()}}
    for fqn, gradient in exact.items():
        found[f"the float64 gradient of {fqn}"] = gradient.size + gradient.rounding
    for what, value in found.items():
        if not math.isfinite(value):
            raise VerificationError(
                f"{name}: {what} of the unsharded model itself is {value}: nothing to compare with",
                hint="look for an overflow, a root or a logarithm of zero, or a division by it, "
                "on the batch that the model is given",
            )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _error(loss: float, expected: float) -> float:
    if not math.isfinite(loss):
        return math.inf
    return abs(loss - expected) / max(abs(expected), 1e-12)


def _check(report: VerifyReport, wrong: int) -> None:
    if wrong:
        raise VerificationError(
            f"gradient of {report.worst_parameter} differs by {report.worst_error:.2e} "
            f"(tolerance {report.tolerance:.0e}); {wrong} of {report.compared} gradients differ",
            hint="this is a bug of the program or of a sharding rule: report it with plan.json",
            details={"parameter": report.worst_parameter, "error": report.worst_error},
        )
    if not report.loss_error <= report.tolerance:
        raise VerificationError(
            f"the loss is {report.loss:.8g}, the unsharded model's {report.expected_loss:.8g} "
            f"(relative error {report.loss_error:.2e}, tolerance {report.tolerance:.0e})",
            hint="this is a bug of the program or of a sharding rule: report it with plan.json",
            details={"loss": report.loss, "expected": report.expected_loss},
        )
