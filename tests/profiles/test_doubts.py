"""Notes on a measured profile: holes, and the command that fills them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from autoplan.cli.parser import parse
from autoplan.profiles import MeasuredProfile, load_cluster
from autoplan.profiles.doubts import profile_notes
from tests.profiles.test_measured import document, write

UPDATES = [{"moved": "12 MiB", "time": "1 ms"}]
OVERLAP = {
    "compute_alone": "1 ms",
    "compute_beside": "1.2 ms",
    "network_alone": "2 ms",
    "network_beside": "2.2 ms",
}
UNITS = [{"parameters": 3, "numel": 1024, "forward": "1 ms", "backward": "2 ms"}]
RECOMPUTE = [
    {
        "level": level,
        "forward": "1 us",
        "backward": "1 us",
        "block_forward": "9 us",
        "block_backward": "9 us",
    }
    for level in ("full", "selective")
]
COMPLETE: dict[str, Any] = {
    "updates": UPDATES,
    "overlap": OVERLAP,
    "units": UNITS,
    "recompute": RECOMPUTE,
}


def holes(data: dict[str, Any], path: Path) -> list[str]:
    notes = profile_notes(MeasuredProfile.model_validate(data), path)
    return [note for note in notes if "earlier release" in note]


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("updates", "no updates"),
        ("overlap", "no overlap"),
        ("units", "no FSDP2 units"),
        ("recompute", "no recompute"),
    ],
)
def test_each_section_that_is_not_there_is_named(lacking: str, words: str) -> None:
    path = Path("old.json")
    assert not holes(document() | COMPLETE, path)
    (note,) = holes(document() | {k: v for k, v in COMPLETE.items() if k != lacking}, path)
    assert words in note and note.count("no ") == 1


def test_one_rank_has_neither_units_nor_overlap() -> None:
    data = document() | {"ranks": 1, "collectives": [], "updates": UPDATES, "recompute": RECOMPUTE}
    assert not holes(data, Path("old.json"))


def test_the_command_in_the_note_measures_the_same_file_again(tmp_path: Path) -> None:
    path = write(tmp_path, document())
    (note,) = (n for n in load_cluster("cpu:2", profile=path).notes if "earlier release" in n)
    command = shlex.split(note.split("measure again: ")[1])
    args = parse(command[1:])
    assert (args.command, args.output, args.fresh, args.model) == ("profile", path, True, None)
    cluster = load_cluster(args.cluster)
    assert (cluster.accelerator.name, cluster.ranks_per_node) == ("cpu", 2)


def test_where_there_are_operators_the_command_has_a_model() -> None:
    operator = {"signature": "aten.x()", "forward": "3 us", "backward": "0 s", "repeats": 9}
    (note,) = holes(document() | {"operators": [operator]}, Path("old.json"))
    assert "autoplan profile MODEL --global-batch N --cluster 2xcpu --fresh -o old.json" in note
