"""The ``autoplan`` command: dispatch, errors, exit codes, streams."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import cast

from autoplan.cli.outcome import Outcome, quiet_stdout, write_json
from autoplan.cli.parser import build_parser, parse
from autoplan.errors import AutoplanError, InternalError

__all__ = ["main"]

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the command ``argv`` (default: the process's arguments)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in argv
    try:
        if not argv:
            build_parser()[0].print_help(sys.stderr)
            return 2
        args = parse(argv)
        _set_up_logging(args.verbose)
        with quiet_stdout():
            outcome = _command(args.command)(args)
        if as_json:
            write_json(outcome.document, sys.stdout)
        else:
            outcome.render(sys.stdout)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away with what it wanted; keep the interpreter's exit silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted", "interrupted", code=INTERRUPTED, as_json=as_json)
    except AutoplanError as error:
        _traceback(argv)
        return _fail_with(error, as_json=as_json)
    except Exception as error:
        _traceback(argv)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        bug = InternalError(
            f"unexpected {what}",
            hint="this is a bug of autoplan: run again with -vv and report it with that output "
            "and the output of: autoplan env",
        )
        return _fail_with(bug, as_json=as_json)
    return outcome.exit_code


def _command(name: str) -> Callable[[argparse.Namespace], Outcome]:
    module = importlib.import_module(f"autoplan.cli.{name}_command")
    return cast("Callable[[argparse.Namespace], Outcome]", module.run)


def _set_up_logging(verbosity: int) -> None:
    logger = logging.getLogger("autoplan")
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.handlers[:] = [handler]
    logger.propagate = False
    if not verbosity:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        warnings.simplefilter("ignore")  # other libraries' warnings; ours are notes of the plan


def _traceback(argv: Sequence[str]) -> None:
    if "-vv" in argv or argv.count("-v") + argv.count("--verbose") > 1:
        traceback.print_exc()


def _fail_with(error: AutoplanError, *, as_json: bool) -> int:
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
    return _fail(
        kind,
        str(error),
        hint=error.hint,
        details=error.details,
        code=error.exit_code,
        as_json=as_json,
    )


def _fail(
    kind: str,
    message: str,
    *,
    code: int,
    as_json: bool,
    hint: str = "",
    details: object = None,
) -> int:
    if as_json:
        body = {"kind": kind, "message": message, "hint": hint, "details": details or {}}
        write_json({"error": body}, sys.stdout)
    message = " ".join(message.split())
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code
