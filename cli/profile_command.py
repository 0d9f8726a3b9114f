"""``autoplan profile``: measure this machine."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TextIO

from autoplan.cli.outcome import Outcome, Progress
from autoplan.errors import UsageError

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Measure matmul, memory and gloo rates of ``cpu:N``, or a loader, and write the file."""
    if args.loader is not None:
        return _loader(args)
    if args.workers is not None:
        raise UsageError("--workers is of a loader", hint="give --loader file.py:factory too")
    match = re.fullmatch(r"cpu:([1-9]\d{0,2})", args.cluster)
    if match is None:
        raise UsageError(
            f"--cluster {args.cluster}: only this machine's CPU can be measured so far",
            hint="write cpu:2 for two ranks; accelerators come from the catalogue "
            "(autoplan hardware)",
        )
    output: Path = args.output
    _require_writable(output)

    from autoplan.profiles.measure import measure_cpu, write_profile

    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    try:
        profile = measure_cpu(int(match[1]), progress, quick=args.quick)
    finally:
        progress.close()
    document = profile.model_dump(mode="json")
    write_profile(profile, output)

    def render(stream: TextIO) -> None:
        stream.write(f"{output}: {profile.ranks} ranks of {profile.device_name}\n")
        stream.write(
            f"next: autoplan solve MODEL --cluster {args.cluster} --profile {output} "
            "--global-batch N\n"
        )

    return Outcome(document=document, render=render)


def _loader(args: argparse.Namespace) -> Outcome:
    output: Path = args.output
    _require_writable(output)

    from autoplan.profiles.measure.loader import measure_loader
    from autoplan.profiles.schema import write_record

    file = measure_loader(args.loader, workers=args.workers, duration=1.0 if args.quick else 3.0)
    write_record(file, output)

    def render(stream: TextIO) -> None:
        stream.write(
            f"{output}: {file.rate:.4g} samples/s with {file.workers} workers "
            f"({file.samples} samples, nothing else at work)\n"
            f"next: autoplan solve MODEL --cluster SPEC --global-batch N --loader-rate {output}\n"
        )

    return Outcome(document=file.model_dump(mode="json"), render=render)


def _require_writable(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"-o {path}: is a folder", hint=f"name a file: -o {path / 'cpu.json'}")
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"-o {path}: {parent} is not writable", hint="name another place")
