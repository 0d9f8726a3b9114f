"""Whether a result can be written, asked before the work that makes it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from autoplan.errors import UsageError

__all__ = ["require_writable_place"]


def require_writable_place(path: Path, *, hint: str) -> None:
    """Raise unless a file can be made in the nearest folder above ``path`` that exists."""
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    try:
        # A permission alone says nothing on a read-only or full file system.
        with tempfile.NamedTemporaryFile(dir=parent) as file:
            file.write(b"0")
    except OSError as error:
        raise UsageError(
            f"-o {path}: {parent} is not writable ({error.strerror or error})", hint=hint
        ) from None
