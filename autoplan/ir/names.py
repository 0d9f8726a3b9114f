"""Names that users write, and what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["near_matches"]


def near_matches(name: str, known: Iterable[str], *, what: str, most: int = 30) -> str:
    """Hint with the known names most like ``name``, or up to ``most`` when none is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return f"it takes no {what}"
    listed = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return f"known {what}: {listed}"
