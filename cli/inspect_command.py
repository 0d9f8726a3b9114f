"""``autoplan inspect``: what a model is made of, before anything is solved."""

from __future__ import annotations

import argparse
from typing import TextIO

from autoplan.cli.outcome import Outcome, Progress
from autoplan.cli.planning import DTYPES, overrides, sequence_length

__all__ = ["run"]


def run(args: argparse.Namespace) -> Outcome:
    """Capture the model and summarise its blocks, cuts, regions and rule coverage."""
    from autoplan.capture import capture, load_model
    from autoplan.report.inspection import inspect_graph, inspection_document, inspection_lines

    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    try:
        source = load_model(
            args.model,
            overrides=overrides(args.set),
            trust_remote_code=args.trust_remote_code,
        )
        seq_len = sequence_length(source, args.seq_len)
        dtype = DTYPES[args.dtype or "bf16"]
        captured = capture(source, seq_len=seq_len, dtype=dtype, progress=progress)
        found = inspect_graph(
            captured.at(args.micro_batch_size or 1), seq_len=seq_len, ranks=args.tp or 2
        )
    finally:
        progress.close()

    def render(stream: TextIO) -> None:
        lines = inspection_lines(found)
        lines += [
            "",
            f"{'next':<12}autoplan solve {args.model} --cluster 8xh100 --global-batch 512",
        ]
        stream.write("\n".join(lines) + "\n")

    return Outcome(document=inspection_document(found), render=render)
