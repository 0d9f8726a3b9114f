"""Compares predictions with measurements.

``python -m benchmarks.accuracy published DIR`` prices the published runs of a folder of CSV files,
each pinned to what was run, and prints errors by file and accelerator.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from autoplan.errors import AutoplanError
from benchmarks.accuracy.published import compare_files
from benchmarks.accuracy.table import as_json, as_text


def main(arguments: list[str] | None = None) -> int:
    """Exit code."""
    args = _parser().parse_args(arguments)
    try:
        results = compare_files(args.folder, only=args.only, progress=_say)
    except AutoplanError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    text = json.dumps(as_json(results), indent=1) + "\n" if args.json else as_text(results)
    sys.stdout.write(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    commands = parser.add_subparsers(required=True)
    published = commands.add_parser("published", help="price published runs as they were run")
    published.add_argument("folder", type=Path, metavar="DIR", help="folder of CSV files")
    published.add_argument("--only", nargs="+", default=[], metavar="FILE", help="these, by stem")
    published.add_argument("--json", action="store_true", help="print every row as JSON")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
