"""Proof of a program without an accelerator: its loss and gradients on gloo ranks."""

from autoplan.verify.compare import TOLERANCE, VerifyReport
from autoplan.verify.program import verify

__all__ = ["TOLERANCE", "VerifyReport", "verify"]
