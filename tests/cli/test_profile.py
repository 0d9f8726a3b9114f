"""``autoplan profile MODEL``: refusals, what is kept, and a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autoplan.cli import profile_command
from autoplan.cli.main import main
from autoplan.profiler.run import _heading, journal_path
from autoplan.profiles.measure.run import Machine, this_machine
from autoplan.profiles.measured import OperatorTiming, load_profile
from tests.cli.conftest import ROOT, SMALL, run_autoplan
from tests.profiles.test_measured import document

MODEL = ("gpt2", *SMALL, "--cluster", "cpu:1", "--micro-batch-size", "1", "--tp", "1")


def profile_here(path: Path, **changes: Any) -> Path:
    """Profile with made-up rates of one rank of this very machine, without operators."""
    machine = this_machine(1)
    data = document() | {
        "device_name": machine.name,
        "cores": machine.cores,
        "ranks": 1,
        "threads_per_rank": machine.threads,
        "torch": machine.torch,
        "collectives": [],
    }
    path.write_text(json.dumps(data | changes), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "1.13.1"}, "(torch 1.13.1, here "),
        ({"device_name": "Other CPU"}, "(device Other CPU, here "),
        ({"cores": 4096}, "(cores 4096, here "),
    ],
)
def test_a_file_of_something_else_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    path = profile_here(tmp_path / "cpu.json", **changes)
    before = path.read_bytes()
    started = time.monotonic()
    assert main(["profile", *MODEL, "-o", str(path)]) == 2
    assert time.monotonic() - started < 2
    error = capsys.readouterr().err
    assert words in error and "--fresh" in error
    assert path.read_bytes() == before


def test_a_truncated_file_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = profile_here(tmp_path / "cpu.json")
    path.write_text(path.read_text()[:200])
    assert main(["profile", *MODEL, "-o", str(path)]) == 6
    assert "measure again with --fresh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward": "3 parsecs"}, "operators.0.forward"),
        ({"forward": 3e-6}, "operators.0.forward"),
        ({"forward": "-3 us"}, "operators.0.forward"),
        ({"backward": "5 GB"}, "operators.0.backward"),
        ({"repeats": 0}, "neither timings nor a failure"),
        ({"spread": -1}, "operators.0.spread"),
        ({"signature": ""}, "operators.0.signature"),
    ],
)
def test_an_edited_operator_is_refused_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], words: str
) -> None:
    sound = {"signature": "aten.x()", "forward": "3 us", "backward": "0 s", "repeats": 9}
    path = profile_here(tmp_path / "cpu.json", operators=[sound | change])
    assert main(["profile", *MODEL, "-o", str(path)]) == 6
    error = capsys.readouterr().err
    assert words in error and str(path) in error


def test_an_operator_listed_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = {"signature": "aten.x()", "forward": "3 us", "backward": "0 s", "repeats": 9}
    path = profile_here(tmp_path / "cpu.json", operators=[sound, sound | {"forward": "4 us"}])
    assert main(["profile", *MODEL, "-o", str(path)]) == 6
    assert "aten.x() twice" in capsys.readouterr().err


def test_failures_and_noise_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Named:
        def __init__(self, signature: str) -> None:
            self.signature = signature

    common = {"backward": "0 s", "repeats": 9}
    operators = [
        common | {"signature": "aten.still()", "forward": "1 ms", "spread": 0.05},
        common | {"signature": "aten.noisy()", "forward": "3 ms", "spread": 0.6},
        {"signature": "aten.huge()", "failure": "out of memory"},
    ]
    path = profile_here(tmp_path / "cpu.json", operators=operators)
    targets = tuple(Named(str(o["signature"])) for o in operators)
    monkeypatch.setattr(profile_command, "_targets", lambda *args: targets)
    assert main(["profile", *MODEL, "-o", str(path)]) == 0
    output = capsys.readouterr().out
    assert "operators: 3 of the model's 3, 0 measured now" in output
    assert "not timed: aten.huge(): out of memory" in output
    assert "noisy: 1 operators with 75% of the time" in output and "aten.noisy() (60%)" in output


def _profile(path: Path, *options: str) -> str:
    done = run_autoplan("profile", *MODEL, "-o", path, "--quiet", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _timed(path: Path) -> dict[str, OperatorTiming]:
    return {timing.signature: timing for timing in load_profile(path).operators}


@pytest.mark.dist
def test_a_killed_run_is_resumed_and_a_done_one_measures_nothing(tmp_path: Path) -> None:
    path = profile_here(tmp_path / "cpu.json")
    journal = journal_path(path)
    command = [sys.executable, "-m", "autoplan.cli", "profile", *MODEL, "-o", str(path), "--quiet"]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_text().count("\n") > 5:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # The rank, which nobody listens to any more, ends by itself.
    size = -1
    while journal.stat().st_size != size and time.monotonic() < deadline:
        size = journal.stat().st_size
        time.sleep(2)
    kept = journal.read_text()
    assert not load_profile(path).operators
    journal.write_text(kept + '{"signature": "aten.cut')

    output = _profile(path)
    timed = _timed(path)
    begun = [json.loads(line) for line in kept.splitlines()[1:]]
    assert f"{len(timed)} of the model's {len(timed)}, {len(timed) - len(begun)} measured" in output
    for line in begun:
        assert timed[line["signature"]].forward == line["forward"]
    assert not any(timing.failure for timing in timed.values())
    assert not journal.exists()

    before = path.read_bytes()
    assert f"{len(timed)} of the model's {len(timed)}, 0 measured now" in _profile(path)
    assert path.read_bytes() == before


def test_fresh_measures_all_again_without_what_a_cut_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {"signature": "aten.x()", "forward": "3 us", "backward": "0 s", "repeats": 9}
    path = profile_here(tmp_path / "cpu.json", operators=[old], torch="1.13.1")
    curves = load_profile(profile_here(tmp_path / "curves.json"))
    journal = journal_path(path)
    journal.write_text("left by a run that was cut off")

    class Named:
        signature = "aten.x()"

    def measured(targets: Any, machine: Machine, journal: Path, progress: Any) -> None:
        assert [target.signature for target in targets] == ["aten.x()"]
        assert not journal.exists()
        line = {"signature": "aten.x()", "forward": 5e-6, "backward": 0.0, "repeats": 9}
        journal.write_text(f"{_heading(machine)}\n{json.dumps(line)}\n")

    monkeypatch.setattr(profile_command, "_targets", lambda *args: (Named(),))
    monkeypatch.setattr(
        "autoplan.profiles.measure.measure_machine", lambda *args, **options: curves
    )
    monkeypatch.setattr("autoplan.profiler.run.measure_operators", measured)
    assert main(["profile", *MODEL, "-o", str(path), "--fresh", "--quiet"]) == 0
    assert "1 of the model's 1, 1 measured now" in capsys.readouterr().out
    (timing,) = load_profile(path).operators
    assert timing.forward == 5e-6
    assert not journal.exists()


def test_a_degree_that_does_not_divide_the_ranks_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cpu.json"
    given = ["--cluster", "cpu:2", "--global-batch", "8", "--tp", "1,3", "-o", str(path)]
    assert main(["profile", "gpt2", *given]) == 2
    assert "--tp 3 does not divide the 2 ranks" in capsys.readouterr().err
    assert not path.exists()
