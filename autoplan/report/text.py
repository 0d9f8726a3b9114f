"""Lines of text reports: what they are drawn with, how they fold, and how they reach a stream.

80 columns; plain ASCII where the stream can't show more; colour is never the only sign.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

__all__ = ["ASCII", "LABEL", "UNICODE", "Glyphs", "joined", "print_lines", "row"]

LABEL = 12
"""Columns of a heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """Signs of a report; ``best`` and ``worse`` are points on the Pareto front and off it."""

    times: str
    dot: str
    bar: str
    chosen: str
    refused: str
    best: str
    worse: str


UNICODE = Glyphs(
    times="\u00d7",
    dot="\u00b7",
    bar="\u2588",
    chosen="\u2714",
    refused="\u2717",
    best="\u25c6",
    worse="\u25cb",
)
ASCII = Glyphs(times="x", dot="-", bar="#", chosen="*", refused="!", best="o", worse=".")


def print_lines(stream: TextIO, lines: Callable[[int, Glyphs], list[str]]) -> None:
    """Write the lines that a report has for a width and glyphs; headings are bold on a terminal."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    width = max(60, min(console.width, 100)) if stream.isatty() else 80
    unicode = (stream.encoding or "").lower().replace("-", "").startswith("utf")
    for line in lines(width, UNICODE if unicode else ASCII):
        console.print(_styled(line), soft_wrap=True)


def joined(sections: Iterable[Iterable[str]], width: int) -> list[str]:
    """Lines of the sections, none wider than ``width``, with an empty one between two."""
    lines: list[str] = []
    for section in sections:
        block = [piece for line in section for piece in _fold(line, width)]
        if block:
            lines += [*block, ""]
    return lines[:-1]


def row(label: str, *items: str) -> str:
    """A heading and what it has to say."""
    return f"{label:<{LABEL}}" + "   ".join(item for item in items if item)


def _styled(line: str) -> Text:
    text = Text(line)
    if line[:1].strip():  # a heading: starts in the first column
        text.stylize("bold", 0, min(LABEL, len(line)))
    return text


def _fold(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line.rstrip()]
    body = line.lstrip()
    hanging = LABEL if not line.startswith(" ") else len(line) - len(body) + 2
    return textwrap.wrap(line, width, subsequent_indent=" " * hanging, drop_whitespace=True)
