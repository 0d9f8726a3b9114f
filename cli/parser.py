"""The grammar of the command line: commands, options, help texts, near matches.

Options have long names only, besides ``-o -q -v``; ``_`` may be written for ``-`` in them.
Nothing heavy is imported here, so that help is instant.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from autoplan._version import __version__
from autoplan.cli.planning_options import configuration, model, seq_len, solve, sweep, trust
from autoplan.cli.values import count, one_of, positive, positives, seconds
from autoplan.errors import UsageError

__all__ = ["COMMANDS", "build_parser", "parse"]

EXIT_CODES = """\
exit codes:
  0    success
  1    a bug of autoplan
  2    wrong arguments
  3    no plan fits
  4    the time limit passed before any plan was found
  5    the model can't be captured
  6    a file is unreadable or fails validation
  7    the cluster at hand differs from the plan's
  8    the program differs from the unsharded model
  130  interrupted"""

EXAMPLES = """\
examples:
  autoplan solve llama3-8b --cluster 8xh100 --global-batch 512 --seq-len 4096 -o plan
  autoplan solve model.py:make --cluster cpu:2 --global-batch 8 --seq-len 64
  autoplan show plan
  autoplan verify plan
  torchrun --nproc-per-node 8 plan/train.py"""

SOLVE_EXAMPLES = """\
examples:
  autoplan solve gpt2 --cluster cpu:2 --global-batch 8 --seq-len 128 -o plan
  autoplan solve llama3-70b --cluster 8x8xh100 --global-batch 1024 --seq-len 8192 --tp 8
  autoplan solve ./config.json --set n_layer=2 --cluster 8xh100 --global-batch 64
  autoplan solve llama3-8b --cluster 8xh100 --global-batch 64 --seq-len 4096 --tp 2,4 \\
      --pin 'model.layers.*.mlp.up_proj.weight=Shard(0)'"""

SWEEP_EXAMPLES = """\
examples:
  autoplan sweep llama3-8b --cluster 1..16x8xh100 --global-batch 512 --seq-len 4096
  autoplan sweep llama3-8b --cluster 1,2,3x8xh100 --global-batch 384 --objective knee
  autoplan sweep gpt2-xl --cluster 8xh100 --global-batch 64 --memory-limit 20GB..80GB:7
  autoplan sweep gpt2-xl --cluster 8xh100 --global-batch 64..1024 --objective cost \\
    --price-per-hour 2.5 -o plans"""

PROFILE_EXAMPLES = """\
examples:
  autoplan profile --cluster cpu:2 -o cpu.json
  autoplan profile gpt2-xl --device cuda --global-batch 64 --dtype bf16 -o gpus.json
  autoplan profile gpt2 --cluster cpu:2 --global-batch 8 --seq-len 128 -o cpu.json
  autoplan solve gpt2 --cluster cpu:2 --global-batch 8 --seq-len 128 --profile cpu.json

A run that was cut off goes on where it stopped; a later one measures only what is new."""

EXAMPLES_OF = {"solve": SOLVE_EXAMPLES, "sweep": SWEEP_EXAMPLES, "profile": PROFILE_EXAMPLES}

COMMANDS = {
    "solve": "find the fastest plan that fits, and write its program",
    "sweep": "solve for many cluster sizes, memory limits or batches, and compare",
    "inspect": "print what a model is made of, without solving",
    "show": "print the report of a plan",
    "explain": "say why a plan is as it is, and what the runner-up costs",
    "check": "validate a plan file again, without solver or torch",
    "emit": "write the program of a plan",
    "verify": "run a program on CPU ranks and compare with the unsharded model",
    "profile": "measure this machine's CPU or GPUs, a model's operators on them, or a data loader",
    "calibrate": "correct predictions by the step log of a run",
    "hardware": "list the accelerators of the catalogue, or show one with its sources",
    "env": "print versions and settings for a bug report",
}

# What people coming from other tools type, and what it's called here.
_FOREIGN = {
    "--gpus": "--cluster 8xh100",
    "--hardware": "--cluster 8xh100",
    "--nproc-per-node": "--cluster 8xh100",
    "--batch-size": "--global-batch",
    "--global-batch-size": "--global-batch",
    "--sequence-length": "--seq-len",
    "--tensor-model-parallel-size": "--tp",
    "--tensor-parallel-degree": "--tp",
    "--pipeline-model-parallel-size": "--pp",
    "--pipeline-parallel-degree": "--pp",
    "--data-parallel-shard-degree": "--dp-shard",
    "--data-parallel-replicate-degree": "--dp-replicate",
    "--train-micro-batch-size-per-gpu": "--micro-batch-size",
    "--zero-stage": "--zero",
    "--output": "-o",
    "--objective": "autoplan sweep --objective",
    "--price-per-hour": "autoplan sweep --price-per-hour",
}


class _Parser(argparse.ArgumentParser):
    def __init__(self, *, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parsed arguments; raises `UsageError` with a near match for what is unknown."""
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        near = _near(argv[0], COMMANDS)
        raise UsageError(f"unknown command {argv[0]!r}", hint=near or "autoplan --help")
    top, commands = build_parser()
    parser = commands[argv[0]] if argv and argv[0] in commands else top
    return top.parse_args(_normalised(argv, parser))


def _normalised(argv: Sequence[str], parser: _Parser) -> list[str]:
    known = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", parser.format_help()))
    result = []
    for token in argv:
        if token == "--":
            break
        name, equals, value = token.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
            if name not in known:
                raise UsageError(
                    f"unknown option {name}", hint=_near(name, known) or f"{parser.prog} --help"
                )
        result.append(name + equals + value)
    return result + list(argv[len(result) :])


def _near(word: str, known: Sequence[str] | set[str] | dict[str, str]) -> str:
    names = {name.lstrip("-"): target for name, target in _FOREIGN.items()}
    names |= {name.lstrip("-"): name for name in sorted(known)}
    match = difflib.get_close_matches(word.lstrip("-"), names, n=1, cutoff=0.6)
    return f"did you mean {names[match[0]]}?" if match else ""


def build_parser() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser, and the parser of each command by name."""
    top = _Parser(
        prog="autoplan",
        description="Automatic parallel plans for training PyTorch models.",
        epilog=f"{EXAMPLES}\n\n{EXIT_CODES}",
    )
    top.add_argument("--version", action="version", version=f"autoplan {__version__}")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    add: dict[str, Callable[[argparse.ArgumentParser], None]] = {
        "solve": solve,
        "sweep": sweep,
        "inspect": _inspect,
        "show": _show,
        "explain": _explain,
        "check": _plan,
        "emit": _emit,
        "verify": _verify,
        "profile": _profile,
        "calibrate": _calibrate,
        "hardware": _hardware,
        "env": _env,
    }
    parsers = {}
    for name, text in COMMANDS.items():
        examples = EXAMPLES_OF.get(name)
        epilog = f"{examples}\n\n{EXIT_CODES}" if examples else EXIT_CODES
        parser = sub.add_parser(
            name,
            prog=f"autoplan {name}",
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=epilog,
        )
        add[name](parser)
        _output(parser)
        parsers[name] = parser
    return top, parsers


def _output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON document on stdout, SI units")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    group.add_argument(
        "-v", "--verbose", action="count", default=0, help="log to stderr; -vv adds tracebacks"
    )


def _inspect(parser: argparse.ArgumentParser) -> None:
    model(parser)
    seq_len(parser)
    parser.add_argument(
        "--tp", type=positive, metavar="N", help="ranks that share an operator (default: 2)"
    )
    parser.add_argument(
        "--micro-batch-size", type=positive, metavar="N", help="sequences at once (default: 1)"
    )
    parser.add_argument(
        "--dtype", type=one_of("bf16", "fp32"), metavar="{bf16,fp32}", help="default: bf16"
    )
    configuration(parser)


def _plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json or its folder")


def _show(parser: argparse.ArgumentParser) -> None:
    _plan(parser)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write its step for Perfetto, chrome://tracing"
    )


def _explain(parser: argparse.ArgumentParser) -> None:
    _plan(parser)
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="parameter (name or '*.up_proj.weight'), operator (linear_3), or degree (tp=8)",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="for the search that a degree takes (default: 30)",
    )
    trust(parser)


def _emit(parser: argparse.ArgumentParser) -> None:
    _plan(parser)
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="DIR", help="folder of the program"
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of the program")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="the model at its own size")
    size.add_argument(
        "--reduced", action="store_true", help="fewer and narrower layers (default: if large)"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="precision of both runs: tolerance 1e-5 or 1e-10",
    )
    trust(parser)


def _profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="also measure the operators that plans for this model run",
    )
    parser.add_argument(
        "--device",
        type=one_of("cpu", "cuda"),
        metavar="{cpu,cuda}",
        help="what to measure (default: that of --cluster); cuda alone: every GPU here",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--cluster", metavar="SPEC", help="ranks to measure on this machine: cpu:2, 8xh100"
    )
    what.add_argument(
        "--loader",
        metavar="FILE.py:FACTORY",
        help="function that returns a DataLoader, whose samples/s to measure",
    )
    parser.add_argument(
        "--workers", type=count, metavar="W", help="num_workers, passed to the loader's factory"
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="FILE",
        help="profile to write; what it holds already isn't measured again",
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--fresh", action="store_true", help="drop what the file holds")
    work = parser.add_argument_group("what of MODEL is measured")
    work.add_argument(
        "--global-batch",
        type=positive,
        metavar="N",
        help="sequences a step: every microbatch size that divides it is measured",
    )
    work.add_argument(
        "--micro-batch-size",
        type=positives,
        metavar="N,...",
        help="only these microbatch sizes",
    )
    work.add_argument("--tp", type=positives, metavar="N,...", help="only these degrees of tp")
    seq_len(work)
    work.add_argument(
        "--dtype", type=one_of("bf16", "fp32"), metavar="{bf16,fp32}", help="default: fp32"
    )
    configuration(work)


def _calibrate(parser: argparse.ArgumentParser) -> None:
    _plan(parser)
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="step log of its run (train.py --log-file)"
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="file to update (default: the plan's profile, else calibration.json beside it)",
    )


def _hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="list | show NAME",
        help="NAME: accelerator (h100), network, or the file of a profile; show may be left out",
    )


def _env(parser: argparse.ArgumentParser) -> None:
    del parser  # no arguments of its own
