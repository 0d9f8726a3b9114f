"""Options of ``solve`` and ``sweep``, and those about a model that other commands have too."""

from __future__ import annotations

import argparse
from pathlib import Path

from autoplan.cli.axes import MAX_POINTS, clusters, counts, one_cluster, one_count, sizes
from autoplan.cli.pin_options import add_pins
from autoplan.cli.values import (
    assignment,
    loader_rate,
    one_of,
    positive,
    price,
    seconds,
    share,
    size,
)

__all__ = ["configuration", "model", "seq_len", "solve", "sweep", "trust"]


def solve(parser: argparse.ArgumentParser) -> None:
    """Add what ``autoplan solve`` takes."""
    model(parser)
    work = parser.add_argument_group("what is trained, and where")
    work.add_argument(
        "--cluster",
        required=True,
        type=one_cluster,
        metavar="SPEC",
        help="8xh100, 16x8xh100 (nodes x ranks), cpu:2, or a cluster file",
    )
    work.add_argument(
        "--global-batch", required=True, type=one_count, metavar="N", help="sequences a step"
    )
    _work(work)
    _pins(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="for the search (default: 60); the best plan so far is kept",
    )
    _gap(limits)
    limits.add_argument(
        "--memory-limit", type=size, metavar="SIZE", help='of a rank, e.g. "70 GiB"'
    )
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="DIR", help="write the program and plan.json here"
    )


def sweep(parser: argparse.ArgumentParser) -> None:
    """Add what ``autoplan sweep`` takes."""
    model(parser)
    axes = parser.add_argument_group(
        "what is varied",
        f"Lists (1,2,3) or ranges; every combination is solved, {MAX_POINTS} at most.",
    )
    axes.add_argument(
        "--cluster",
        required=True,
        type=clusters,
        metavar="SPEC",
        help="1..64x8xh100 (nodes 1, 2, 4 to 64), 1,2,3x8xh100, cpu:1,2, or one cluster",
    )
    axes.add_argument(
        "--global-batch",
        required=True,
        type=counts,
        metavar="N",
        help="sequences a step; it stays as it is unless there are several: 256,512 or 256..1024",
    )
    axes.add_argument(
        "--memory-limit",
        type=sizes,
        metavar="SIZES",
        help="of a rank: 40GB,60GB or 40GB..80GB:5, evenly (default: what is usable)",
    )
    choice = parser.add_argument_group("what is best")
    choice.add_argument(
        "--objective",
        type=one_of("step-time", "device-hours", "cost", "knee"),
        default="step-time",
        metavar="NAME",
        help="step-time (default), device-hours or cost, each for the same number of samples, "
        "or knee: where more ranks begin to pay less",
    )
    choice.add_argument(
        "--price-per-hour",
        type=price,
        metavar="PRICE",
        help="of one device, in any currency; there is no default",
    )
    work = parser.add_argument_group("what is trained")
    _work(work)
    _pins(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--time-limit",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="for all searches together (default: 600); the points found so far are kept",
    )
    _gap(limits)
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="DIR", help="write the plan of each point here"
    )


def model(parser: argparse.ArgumentParser) -> None:
    """Add the model."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="built-in name (llama3-8b), config.json or its folder, or file.py:factory",
    )


def _work(work: argparse._ActionsContainer) -> None:
    seq_len(work)
    work.add_argument(
        "--dtype",
        type=one_of("bf16", "fp32"),
        metavar="{bf16,fp32}",
        help="default: bf16, fp32 on a CPU or where the device has no bf16",
    )
    work.add_argument(
        "--optimizer",
        type=one_of("adamw", "adamw-bf16", "adamw-8bit", "sgd", "sgd-momentum"),
        default="adamw",
        metavar="NAME",
        help="adamw (default), adamw-bf16 or adamw-8bit (smaller moments), sgd, sgd-momentum",
    )
    work.add_argument(
        "--master-weights",
        type=one_of("float32", "none"),
        default="float32",
        metavar="{float32,none}",
        help="of bf16 models; none: bf16 alone, rounded stochastically, at ZeRO 0 and 1",
    )
    work.add_argument(
        "--compile", action="store_true", help="price and run blocks under torch.compile"
    )
    work.add_argument(
        "--profile", type=Path, metavar="FILE", help="of autoplan profile or calibrate"
    )
    work.add_argument(
        "--loader-rate",
        type=loader_rate,
        metavar="RATE",
        help='what the loaders of one node give, e.g. "1200 samples/s", or a file of '
        "autoplan profile --loader",
    )
    configuration(work)


def _pins(parser: argparse.ArgumentParser) -> None:
    add_pins(parser.add_argument_group("decisions to fix (default: the planner chooses)"))


def _gap(limits: argparse._ActionsContainer) -> None:
    limits.add_argument(
        "--gap",
        type=share,
        default=0.01,
        metavar="SHARE",
        help='stop when no plan can be faster by more, e.g. "0.5%%" or 0.005 (default: 1%%)',
    )


def seq_len(parser: argparse._ActionsContainer) -> None:
    """Add ``--seq-len``."""
    parser.add_argument(
        "--seq-len",
        type=positive,
        metavar="S",
        help="tokens a sequence (default: the longest the model's configuration allows)",
    )


def configuration(parser: argparse._ActionsContainer) -> None:
    """Add what changes the model's configuration."""
    parser.add_argument(
        "--set",
        action="append",
        type=assignment,
        default=[],
        metavar="KEY=VALUE",
        help="override one field of the model's configuration; may be repeated",
    )
    trust(parser)


def trust(parser: argparse._ActionsContainer) -> None:
    """Add ``--trust-remote-code``."""
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the model"
    )
