"""Errors that users meet, each with its exit code.

::

    AutoplanError                      1
    +-- UsageError                     2   wrong arguments or combination
    +-- InfeasibleError                3   no plan satisfies the constraints
    +-- SolverLimitError               4   time limit reached with no plan yet
    +-- CaptureError                   5   the model cannot be captured
    |   +-- UnsupportedOpError         5   an operator without a rule, where one is needed
    +-- InputError                     6   a file is unreadable or fails validation
    +-- EnvironmentMismatchError       7   launched on a cluster that is not the plan's
    +-- VerificationError              8   a program differs from the unsharded model
    +-- InternalError                  1   a bug of autoplan
"""

from __future__ import annotations

__all__ = [
    "AutoplanError",
    "CaptureError",
    "EnvironmentMismatchError",
    "InfeasibleError",
    "InputError",
    "InternalError",
    "SolverLimitError",
    "UnsupportedOpError",
    "UsageError",
    "VerificationError",
]

Detail = str | int | float | bool | None | list["Detail"] | dict[str, "Detail"]


class AutoplanError(Exception):
    """Base of all errors meant for users: what happened, and the next thing to try.

    ``details`` is JSON-able and goes into ``--json`` output.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str = "", details: dict[str, Detail] | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.details: dict[str, Detail] = details or {}


class UsageError(AutoplanError):
    """Wrong arguments, or arguments that don't go together."""

    exit_code = 2


class InfeasibleError(AutoplanError):
    """No plan satisfies the constraints; ``details`` has the shortfall in bytes."""

    exit_code = 3


class SolverLimitError(AutoplanError):
    """The time limit passed before any plan was found."""

    exit_code = 4


class CaptureError(AutoplanError):
    """The model can't be captured; the message names the module and source line."""

    exit_code = 5


class UnsupportedOpError(CaptureError):
    """An operator has no rule where one is needed."""


class InputError(AutoplanError):
    """A file is unreadable, of the wrong version, or fails validation."""

    exit_code = 6


class EnvironmentMismatchError(AutoplanError):
    """A program was launched on a cluster that differs from its plan."""

    exit_code = 7


class VerificationError(AutoplanError):
    """A generated program's loss or gradients differ from the unsharded model's."""

    exit_code = 8


class InternalError(AutoplanError):
    """A bug of autoplan; the message says how to report it."""
