"""``autoplan env``: what a bug report needs, and nothing secret."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from typing import TextIO

from autoplan._version import __version__
from autoplan.cli.outcome import Outcome

__all__ = ["run"]

_PACKAGES = ("torch", "numpy", "pulp", "highspy", "pydantic", "rich", "transformers")


def run(args: argparse.Namespace) -> Outcome:
    """Versions of what autoplan uses, the machine, and ``AUTOPLAN_*`` variables."""
    del args
    document = {
        "autoplan": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("AUTOPLAN_")},
    }

    def render(stream: TextIO) -> None:
        for key, value in document.items():
            rows = value.items() if isinstance(value, dict) else [(key, value)]
            for name, text in rows:
                stream.write(f"{name:<14} {'not installed' if text is None else text}\n")

    return Outcome(document=document, render=render)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
