"""Compares predictions with measurements.

``python -m benchmarks.accuracy published DIR`` prices the published runs of a folder of CSV files,
each pinned to what was run, and prints errors by file and accelerator.

``python -m benchmarks.accuracy local`` runs a grid of plans on two CPU ranks and compares step time
and the bytes of tensors; of pipelines with sharded parameters, on four ranks, bytes only.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from autoplan.errors import AutoplanError, InputError, UsageError
from benchmarks.accuracy.published import compare_files
from benchmarks.accuracy.table import as_json, as_text


def main(arguments: list[str] | None = None) -> int:
    """Exit code."""
    args = _parser().parse_args(arguments)
    try:
        if args.command == "local":
            return _local(args)
        _check_writable(args.json)
        results = compare_files(args.folder, only=args.only, progress=_say)
    except AutoplanError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if args.json is not None:
        args.json.write_text(json.dumps(as_json(results), indent=1) + "\n")
    sys.stdout.write(as_text(results, pairs=args.pairs))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    published = commands.add_parser("published", help="price published runs as they were run")
    published.add_argument("folder", type=Path, metavar="DIR", help="folder of CSV files")
    published.add_argument("--only", nargs="+", default=[], metavar="FILE", help="these, by stem")
    published.add_argument("--pairs", action="store_true", help="list pairs in the wrong order")
    published.add_argument("--json", type=Path, metavar="FILE", help="every row, written here")
    local = commands.add_parser("local", help="run plans on two CPU ranks")
    local.add_argument("--only", nargs="+", default=[], metavar="NAME", help="part of rows' names")
    local.add_argument("--what", choices=("time", "memory", "both"), default="both")
    local.add_argument("--steps", type=int, default=5, help="timed steps a round (default 5)")
    local.add_argument("--rounds", type=int, default=3, help="times each row is run (default 3)")
    local.add_argument("--profile", type=Path, help="measured profile of this machine")
    local.add_argument("--json", type=Path, metavar="FILE", help="written after every run")
    return parser


def _local(args: argparse.Namespace) -> int:
    """Exit code: 1 when a row failed."""
    from benchmarks.accuracy.local import chosen_rows, run_local
    from benchmarks.accuracy.local_table import text

    for name in ("steps", "rounds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} must be at least 1")
    _check_writable(args.json)
    document = run_local(
        chosen_rows(args.only),
        steps=args.steps,
        rounds=args.rounds,
        what=("time", "memory") if args.what == "both" else (args.what,),
        profile=args.profile,
        output=args.json,
        progress=_say,
    )
    sys.stdout.write(text(document))
    return 1 if any("error" in row for row in document["rows"].values()) else 0


def _check_writable(path: Path | None) -> None:
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: {path.parent} is no folder")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
