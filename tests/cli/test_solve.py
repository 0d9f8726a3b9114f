"""``autoplan solve`` from end to end on small models, and its exit codes on bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Run = Callable[..., "CompletedProcess[str]"]

SMALL = (
    "--set=n_layer=2",
    "--set=n_embd=64",
    "--set=n_head=4",
    "--set=vocab_size=512",
    "--seq-len=32",
)
CPU = ("--cluster", "cpu:2", "--global-batch", "4")

DATA_DEPENDENT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            y = y * 2
        return y.square().mean()

def make():
    return Model()

def batch(batch_size, seq_len):
    return {"x": torch.randn(batch_size, 4)}
"""


def test_document_has_the_documented_keys(solved: tuple[Path, dict[str, Any]]) -> None:
    _, document = solved
    for key in ("step_time", "lower_bound", "peak_memory", "memory_limit", "solve_time"):
        assert document[key] > 0, key
    assert 0 <= document["gap"] < 1
    assert document["baselines"]
    assert document["lower_bound"] <= document["step_time"] * (1 + 1e-9)
    assert document["peak_memory"] <= document["memory_limit"]
    degrees = document["mesh"].values()
    assert len(degrees) == 4


def test_solved_plan_passes_its_checks(autoplan: Run, solved: tuple[Path, dict[str, Any]]) -> None:
    folder, document = solved
    done = autoplan("check", folder)
    assert done.returncode == 0, done.stderr
    shown = json.loads(autoplan("show", folder, "--json").stdout)
    for key in ("step_time", "mesh", "pipeline", "zero", "recompute", "baselines", "gap"):
        assert shown[key] == document[key], key
    assert shown["solve_time"] is None


def test_emit_of_the_plan_is_the_program_that_solve_wrote(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = solved
    assert autoplan("emit", folder, "-o", tmp_path / "again").returncode == 0
    for name in ("plan.json", "model.py", "train.py"):
        assert (tmp_path / "again" / name).read_text() == (folder / name).read_text()


def test_wrong_world_size_is_exit_7(solved: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = solved
    done = subprocess.run(
        [sys.executable, folder / "train.py", "--steps", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "2 ranks" in done.stderr or "world" in done.stderr.lower()


@pytest.mark.slow
def test_same_input_gives_the_same_bytes(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = solved
    done = autoplan("solve", "gpt2", *SMALL, *CPU, "-o", tmp_path / "b", PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b" / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt2", "--cluster", "8xh1000", "--global-batch", "8"], "h1000"),
        (["gpt2", "--cluster", "h100x8", "--global-batch", "8"], "h100x8"),
        (["gpt2", "--cluster", "0xh100", "--global-batch", "8"], "0xh100"),
        (["gpt2", *CPU, "-o", "taken"], "exists and is no folder"),
        (["gpt2", *CPU, "-o", "/dev/null/x"], "not writable"),
    ],
)
def test_bad_arguments_are_told_before_torch_is_loaded(
    autoplan: Run, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "taken").write_text("")
    started = time.monotonic()
    done = autoplan("solve", *words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "hint: " in done.stderr
    assert time.monotonic() - started < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "messages"),
    [
        (["gtp2", *CPU], 2, ["gtp2", "gpt2"]),
        (["gpt2", *SMALL, *CPU, "--set=n_layers=3"], 2, ["n_layers", "n_layer"]),
        (["gpt2", *SMALL, *CPU, "--tp", "3"], 2, ["tp", "3"]),
        (["gpt2", *SMALL, "--cluster=cpu:2", "--global-batch=5", "--dp-shard=2"], 2, ["5"]),
        (["gpt2", *SMALL, *CPU, "--memory-limit", "1 MiB"], 3, ["MiB"]),
        (["gpt2", *SMALL, *CPU, "--time-limit", "0.000001"], 4, ["time"]),
        (["data_dependent.py:make", *CPU], 5, ["data_dependent.py", "12"]),
        (["data_dependent.py:mak", *CPU], 2, ["mak", "make"]),
        (["missing.py:make", *CPU], 6, ["missing.py"]),
        (["broken/config.json", *CPU], 6, ["config.json"]),
        (["broken.py:make", *CPU], 6, ["broken.py"]),
        (["notes.txt", *CPU], 6, ["notes.txt"]),
    ],
)
def test_exit_codes(
    autoplan: Run, tmp_path: Path, words: list[str], code: int, messages: list[str]
) -> None:
    (tmp_path / "data_dependent.py").write_text(DATA_DEPENDENT)
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "notes.txt").write_text("no model\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "gpt2", ')
    done = autoplan("solve", *words, "--json")
    assert done.returncode == code, done.stderr
    body = json.loads(done.stdout)["error"]
    assert body["hint"]
    for message in messages:
        assert message in body["message"] + body["hint"]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_interrupt_of_a_solve_ends_soon(root: Path) -> None:
    command = ["solve", "gpt2-xl", "--cluster", "64x8xh100", "--global-batch", "4096", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "autoplan.cli", *command],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), err
    document = json.loads(out)
    if process.returncode == 130:
        assert document["error"]["kind"] == "interrupted"
    else:
        assert document["termination"] == "interrupted"
