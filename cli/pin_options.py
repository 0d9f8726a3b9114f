"""Options that fix a decision of the planner, of every command that searches."""

from __future__ import annotations

import argparse

from autoplan.cli.values import degrees, some_of
from autoplan.schedules import SCHEDULES

__all__ = ["add_pins"]


def add_pins(pins: argparse._ActionsContainer) -> None:
    """Add them; what is left out is for the planner to choose."""
    for name in ("tp", "pp", "dp-shard", "dp-replicate"):
        pins.add_argument(
            f"--{name}", type=degrees, metavar="N,...", help=f"degree of {name}, or several"
        )
    pins.add_argument("--micro-batch-size", type=degrees, metavar="N,...", help="sequences at once")
    pins.add_argument(
        "--recompute",
        type=some_of("none", "selective", "full"),
        metavar="{none,selective,full}",
        help="of activations: selective keeps what matmuls, attention and collectives give",
    )
    pins.add_argument(
        "--schedule",
        type=some_of(*SCHEDULES),
        metavar="NAME,...",
        help="of the pipeline: gpipe, 1f1b or interleaved1f1b; by request also loopedbfs, "
        "interleavedzerobubble, zbvzerobubble or dualpipev",
    )
    pins.add_argument(
        "--virtual-stages", type=degrees, metavar="N,...", help="stages on each pipeline rank"
    )
    pins.add_argument(
        "--zero",
        type=some_of("0", "1", "2", "3"),
        metavar="{0,1,2,3}",
        help="0 whole states, 1 optimizer sharded, 2 + gradients, 3 + parameters",
    )
    pins.add_argument(
        "--stages",
        metavar="BLOCKS",
        help="blocks of each stage: 0-11,12-23, or names of first blocks: model.layers.12",
    )
    pins.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="PATTERN=PLACEMENT",
        help="of parameters on tp: '*.up_proj.weight=Shard(0)', or Replicate; may be repeated",
    )
