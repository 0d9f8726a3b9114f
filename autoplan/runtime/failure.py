"""Errors of an emitted program that its user meets, each with its exit code."""

from __future__ import annotations

__all__ = [
    "EnvironmentMismatch",
    "InvalidFile",
    "InvalidOption",
    "ProgramError",
    "TrainingDiverged",
]


class ProgramError(Exception):
    """What happened, and in ``hint`` the next thing to try."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TrainingDiverged(ProgramError):
    """The loss is not a finite number."""


class InvalidOption(ProgramError):
    """An argument the program can't work with."""

    exit_code = 2


class InvalidFile(ProgramError):
    """A file is unreadable or not what the plan says."""

    exit_code = 6


class EnvironmentMismatch(ProgramError):
    """The program was launched on a cluster that differs from its plan."""

    exit_code = 7
