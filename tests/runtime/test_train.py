"""The training loop on one rank, and how it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplan.runtime.environment import check_environment
from autoplan.runtime.failure import EnvironmentMismatch, InvalidFile
from autoplan.runtime.optimizer import learning_rate
from autoplan.runtime.planfile import ProgramPlan, read_plan
from autoplan.runtime.train import main
from tests.runtime.toy import PARAMETERS, Program, make_plan


def write_plan(folder: Path, plan: ProgramPlan) -> Path:
    """Write plan.json with what a program reads of it."""
    f = dataclasses.asdict(plan)
    pick = lambda *names: {name: f[name] for name in names}  # noqa: E731
    data = {
        "schema_version": 2,
        "graph": f["graph"] | {"name": f["name"]},
        "mesh": pick("pp", "dp_replicate", "dp_shard", "tp"),
        "pipeline": pick("schedule", "microbatches", "micro_batch_size")
        | {"stages": [{"first": a, "last": b} for a, b in plan.stages]},
        "workload": pick("global_batch", "seq_len", "dtype", "optimizer"),
        "model": {"digest": "a" * 32},
        "cluster": {"spec": f["cluster"], "digest": "b" * 32}
        | pick("accelerator", "ranks_per_node"),
        "prediction": pick("step_time", "mfu", "peak_memory"),
        **pick("zero", "recompute"),
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "AUTOPLAN_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, *args: str, program: Any = None) -> int:
    return main(program or Program(1), folder, list(args))


def test_a_run_learns_logs_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path, make_plan())
    log, saved = tmp_path / "log.jsonl", tmp_path / "out.pt"
    arguments = ["--steps", "30", "--lr", "0.02", "--warmup", "3"]
    assert run(tmp_path, *arguments, "--log-file", str(log), "--save", str(saved)) == 0
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["step"] for r in records] == list(range(1, 31))
    losses = [r["loss"] for r in records]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert records[0]["predicted_step_time"] == 0.01
    assert records[0]["mfu"] == pytest.approx(0.1 * 0.01 / records[0]["step_time"])
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 31
    assert "measured / predicted" in output[-1]
    state = torch.load(saved, weights_only=True)
    assert {k: tuple(v.shape) for k, v in state.items()} == {
        k: v.shape for k, v in PARAMETERS.items()
    }
    # Weights that were saved are what a run with them starts from: the loss goes on.
    again = tmp_path / "again.jsonl"
    assert run(tmp_path, "--steps", "1", "--weights", str(saved), "--log-file", str(again)) == 0
    assert json.loads(again.read_text())["loss"] < 0.8 * losses[0]


def test_the_same_seed_gives_the_same_losses(tmp_path: Path) -> None:
    write_plan(tmp_path, make_plan())
    logs = []
    for seed in (0, 0, 1):
        path = tmp_path / "log.jsonl"
        assert run(tmp_path, "--steps", "3", "--seed", str(seed), "--log-file", str(path)) == 0
        logs.append([json.loads(line)["loss"] for line in path.read_text().splitlines()])
    assert logs[0] == logs[1] != logs[2]


def test_a_loss_that_is_no_number_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path, make_plan())
    bad = {k: torch.full(v.shape, math.nan) for k, v in PARAMETERS.items()}
    torch.save(bad, tmp_path / "bad.pt")
    assert run(tmp_path, "--weights", str(tmp_path / "bad.pt")) == 1
    assert capsys.readouterr().err.startswith("error: the loss is nan at step 1\nhint: ")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--steps", "0"], 2, "--steps must be at least 1"),
        (["--frobnicate"], 2, "unrecognized arguments"),
        (["--lr", "fast"], 2, "invalid float value"),
        (["--data", "x.bin"], 2, "no token input"),
        (["--weights", "no.pt"], 6, "no such file"),
        (["--log-file", "no/where/log.jsonl"], 6, "no folder"),
    ],
)
def test_bad_options_end_in_one_line_and_a_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    write_plan(tmp_path, make_plan())
    assert run(tmp_path, *arguments) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") <= 2


def test_bad_weights_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path, make_plan())
    path = tmp_path / "w.pt"
    good = {k: torch.zeros(v.shape) for k, v in PARAMETERS.items()}
    path.write_bytes(b"nothing")
    assert run(tmp_path, "--weights", str(path)) == 6
    torch.save({k: v for k, v in good.items() if k != "tied"}, path)
    assert run(tmp_path, "--weights", str(path)) == 6
    torch.save(good | {"tied": torch.zeros(2)}, path)
    assert run(tmp_path, "--weights", str(path)) == 6
    errors = capsys.readouterr().err
    assert "no state dict" in errors
    assert "lacks 1 of 10 parameters, first tied" in errors
    assert "tied has shape (2,)" in errors


def test_another_world_size_is_refused_with_code_7(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path, make_plan(tp=2))
    assert run(tmp_path) == 7
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: the plan is for 2 ranks (cpu), 1 were launched"
    assert "torchrun --nproc-per-node 2 train.py" in lines[1]
    assert len(lines) == 2
    assert run(tmp_path, "--check") == 0
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert run(tmp_path) == 7
    assert capsys.readouterr().err == ""


def test_device_and_memory_must_be_the_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu = dataclasses.replace(make_plan(), accelerator="H100-80GB-SXM")
    with pytest.raises(EnvironmentMismatch, match="no accelerator"):
        check_environment(gpu, {})
    assert check_environment(gpu, {"AUTOPLAN_DEVICE": "cpu"}).backend == "gloo"
    with pytest.raises(EnvironmentMismatch, match="only 'cpu'"):
        check_environment(gpu, {"AUTOPLAN_DEVICE": "tpu"})
    two = dataclasses.replace(gpu, dp_shard=2, ranks_per_node=2, global_batch=32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    write_plan(tmp_path, two)
    assert run(tmp_path, "--check") == 7
    assert "local rank 1 has no device" in capsys.readouterr().err
    large = dataclasses.replace(make_plan(), peak_memory=2**60)
    with pytest.raises(EnvironmentMismatch, match="a rank needs"):
        check_environment(large, {})


def test_a_whole_plan_file_is_read(tmp_path: Path, plan_data: dict[str, Any]) -> None:
    path = tmp_path / "plan.json"
    block = plan_data["graph"]["classes"][1]
    block["boundary_in"] = ["S(1)"]
    path.write_text(json.dumps(plan_data))
    plan = read_plan(path)
    assert (plan.ranks, plan.stages) == (4, ((0, 1), (1, 2)))
    assert plan.boundary(0) == ()
    assert [t.shape for t in plan.boundary(1)] == [(4, 4)]
    assert plan.loss().shape == ()
    assert plan.ranks_of("mlp.up.weight") == (1,)


@pytest.mark.parametrize("damage", ["cut", "version", "key", "batch", "missing"])
def test_a_damaged_plan_file_is_refused(
    tmp_path: Path, plan_data: dict[str, Any], damage: str
) -> None:
    path = tmp_path / "plan.json"
    if damage == "version":
        plan_data["schema_version"] = 9
    if damage == "key":
        del plan_data["mesh"]["tp"]
    if damage == "batch":
        plan_data["workload"]["global_batch"] = 17
    text = json.dumps(plan_data)
    if damage != "missing":
        path.write_text(text[: len(text) // 2] if damage == "cut" else text)
    with pytest.raises(InvalidFile, match=r"plan\.json"):
        read_plan(path)


def test_the_rate_warms_up_then_falls() -> None:
    rates = [learning_rate(s, peak=1.0, warmup=4, steps=20) for s in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert 0.1 < rates[-1] < 0.12
