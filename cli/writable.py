"""Whether a result can be written, asked before the work that makes it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from autoplan.errors import UsageError

__all__ = ["require_own_folder", "require_writable_place"]


def require_own_folder(directory: Path, marker: str) -> None:
    """Raise when files can't be written to ``directory``, or it has others and no ``marker``."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"-o {directory}: exists and is no folder", hint="name a new folder")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / marker).exists():
        raise UsageError(
            f"-o {directory}: the folder has other files and no {marker}",
            hint="name a new or empty folder, so that nothing of yours is overwritten",
        )
    require_writable_place(directory / marker, hint="name another folder")


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
