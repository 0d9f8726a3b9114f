"""Notes on a measured profile: holes, and the command that fills them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from autoplan.cli.main import main
from autoplan.cli.parser import parse
from autoplan.errors import InputError
from autoplan.profiles import MeasuredProfile, load_cluster, load_profile
from autoplan.profiles.doubts import profile_notes
from autoplan.profiles.measured import _figures
from autoplan.profiles.plausible import RANGES
from autoplan.profiles.schema import write_record
from tests.profiles.test_measured import document, write

MEASURED = Path(__file__).resolve().parents[2] / "profiles" / "measured"
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


def scaled(data: Any, factor: float) -> Any:
    """Every ``time`` below in other units."""
    if isinstance(data, list):
        return [scaled(item, factor) for item in data]
    value, unit = data["time"].split()
    return data | {"time": f"{float(value) * factor!r} {unit}"}


SECTIONS = [("matmul", 1e6), ("matmul", 1e-6), ("attention", 1e6), ("copies", 1e6)]


@pytest.mark.parametrize(("section", "factor"), [*SECTIONS, ("collectives", 1e6)])
def test_a_whole_section_in_another_unit_is_refused_with_what_it_does_not_go_with(
    section: str, factor: float, tmp_path: Path
) -> None:
    data = document()
    path = write(tmp_path, data | {section: scaled(data[section], factor)})
    with pytest.raises(InputError, match="where every machine is: wrong unit") as caught:
        load_cluster("cpu:2", profile=path)
    assert str(path) in str(caught.value) and "Value error" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel_latency": "4 s"}, "kernel_latency over"),
        ({"dispatch_latency": "4 s"}, "dispatch_latency"),
        ({"memory": "16 MB"}, "memory of a rank"),
        ({"memory": "16000000 GB"}, "memory of a rank"),
        ({"overlap": OVERLAP | {"compute_beside": "1.2 s"}}, "kernels beside"),
        ({"overlap": OVERLAP | {"network_alone": "2 us"}}, "collectives beside"),
        (
            {"operators": [{"signature": "aten.x()", "forward": "3000 s", "repeats": 9}]},
            "an operator",
        ),
    ],
)
def test_single_numbers_that_no_machine_has_are_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_cluster("cpu:2", profile=write(tmp_path, document() | change))
    assert "measure again" in caught.value.hint


@pytest.mark.parametrize("kind", ["profile", "calibration"])
def test_a_file_of_a_later_release_says_so(kind: str, tmp_path: Path) -> None:
    data = document() if kind == "profile" else {"kind": "calibration", "residuals": []}
    path = write(tmp_path, data | {"schema_version": 9, "unheard_of": 1})
    with pytest.raises(InputError, match=r"schema_version 9 is of a later release") as caught:
        load_cluster("cpu:2", profile=path)
    assert "update autoplan" in caught.value.hint


def test_a_device_that_the_catalogue_lacks_is_the_file_s_fault(tmp_path: Path) -> None:
    path = write(tmp_path, document() | {"device": "tpu-v9"})
    with pytest.raises(InputError, match=r"profile.json: the profile is of 'tpu-v9'"):
        load_cluster("cpu:2", profile=path)


def test_a_place_that_can_not_be_written_is_told_before_measuring(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A permission says nothing of it to root: nobody makes files in /proc."""
    assert main(["profile", "--cluster", "cpu:1", "-o", "/proc/cpu.json"]) == 2
    error = capsys.readouterr().err
    assert "-o /proc/cpu.json: /proc is not writable" in error and error.count("error:") == 1


def test_a_disk_that_fails_when_the_file_is_written_is_one_line(tmp_path: Path) -> None:
    profile = MeasuredProfile.model_validate(document())
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="can't be written: "):
        write_record(profile, tmp_path / "file" / "cpu.json")


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_profiles_that_come_with_the_project_are_far_inside(path: Path) -> None:
    for name, value in _figures(load_profile(path)).items():
        low, high = RANGES[name]
        assert low <= value / 3 and value * 3 <= high, name
