"""What a command hands to `main`, and how text and JSON reach the right stream."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO

__all__ = ["Outcome", "Progress", "quiet_stdout", "write_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a command: ``document`` for ``--json``, ``render`` for people."""

    document: Mapping[str, object]
    render: Callable[[TextIO], None]
    exit_code: int = 0


def write_json(document: Mapping[str, object], stream: TextIO) -> None:
    """Write exactly one JSON document and a newline; NaN and infinity are refused."""
    stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    stream.flush()


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send whatever libraries print on stdout to stderr instead, C libraries included.

    HiGHS writes its banner to file descriptor 1 even when told to be silent.
    """
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # stdout is closed
        yield
        return
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _flush_c_streams()
        os.dup2(saved, 1)
        os.close(saved)


def _flush_c_streams() -> None:
    import ctypes

    ctypes.CDLL(None).fflush(None)


class Progress:
    """A callable for messages on stderr: one live line on a terminal, else a line now and then.

    ``interval`` is the least number of seconds between two plain lines.
    """

    def __init__(self, *, quiet: bool, verbose: bool, interval: float = 10.0) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not verbose and os.environ.get("TERM") != "dumb"
        self._interval = 0.0 if verbose else interval
        self._last = time.monotonic()
        self._drawn = False

    def __call__(self, message: str) -> None:
        """Show ``message``, or drop it when another was shown a moment ago."""
        if self._quiet:
            return
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{message[:78]}")
            sys.stderr.flush()
            self._drawn = True
            return
        now = time.monotonic()
        if now - self._last >= self._interval:
            self._last = now
            print(message, file=sys.stderr)

    def close(self) -> None:
        """Remove the live line."""
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._drawn = False
