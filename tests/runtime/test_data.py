"""Batches: what inputs mean, and an order that no mesh changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplan.runtime.data import TokenFile, batch, batch_inputs
from autoplan.runtime.failure import InvalidFile
from autoplan.runtime.planfile import ProgramPlan
from tests.runtime.toy import make_plan


def _tensor(name: str, shape: list[int], dtype: str = "int64") -> dict[str, Any]:
    return {"name": name, "shape": shape, "dtype": dtype, "kind": "input", "requires_grad": False}


def _op(target: str, args: list[str], output: str) -> dict[str, Any]:
    return {"target": target, "args": [{"ref": a} for a in args], "outputs": [output]}


def language_plan(**changes: Any) -> ProgramPlan:
    """Tokens reach the table through a view; positions reach a smaller one; labels the loss."""
    block = {
        "ops": [
            _op("aten.embedding.default", ["table", "flat"], "h"),
            _op("aten.embedding.default", ["positions", "index"], "p"),
            _op("aten.cross_entropy_loss.default", ["logits", "shifted"], "loss"),
        ],
        "tensors": [
            _tensor("table", [50, 4], "float32"),
            _tensor("positions", [8, 4], "float32"),
            _tensor("logits", [16, 50], "float32"),
            _tensor("h", [2, 8, 4], "float32"),
            _tensor("p", [8, 4], "float32"),
            _tensor("loss", [], "float32"),
        ],
    }
    graph = {
        "inputs": [
            _tensor("input_ids", [2, 8]),
            _tensor("labels", [2, 8]),
            _tensor("kinds", [2, 8]),
            _tensor("attention_mask", [2, 8]),
            _tensor("pixels", [2, 3, 4], "float32"),
        ],
        "shared_ops": [
            _op("aten.view.default", ["input_ids"], "flat"),
            _op("aten.arange.default", [], "index"),
            _op("aten.slice.Tensor", ["labels"], "shifted"),
        ],
        "shared_tensors": [_tensor(n, [16]) for n in ("flat", "index", "shifted")],
        "classes": [block],
    }
    return dataclasses.replace(make_plan(**changes), graph=graph)


def test_integers_stay_below_the_tables_they_index() -> None:
    bounds = {item.name: item.bound for item in batch_inputs(language_plan())}
    assert bounds == {
        "input_ids": 50,
        "labels": 50,
        "kinds": 2,
        "attention_mask": 2,
        "pixels": None,
    }


def test_the_mesh_changes_who_reads_but_not_what() -> None:
    whole = language_plan()
    halves = language_plan(dp_shard=2)
    inputs = batch_inputs(whole)
    one = batch(inputs, whole, step=3, dp_rank=0, seed=1)
    two = [batch(inputs, halves, step=3, dp_rank=r, seed=1) for r in range(2)]
    for name, value in one.items():
        assert torch.equal(value, torch.cat([part[name] for part in two])), name
    assert torch.equal(one["input_ids"], one["labels"])
    assert bool((one["attention_mask"] == 1).all())
    assert 0 <= int(one["input_ids"].min()) <= int(one["input_ids"].max()) < 50
    later = batch(inputs, whole, step=4, dp_rank=0, seed=1)
    assert not torch.equal(one["input_ids"], later["input_ids"])


@pytest.mark.parametrize(("suffix", "width"), [(".bin", 2), (".u32", 4)])
def test_an_epoch_reads_each_window_of_a_file_once(tmp_path: Path, suffix: str, width: int) -> None:
    path = tmp_path / f"tokens{suffix}"
    tokens = [(7 * i) % 40000 for i in range(101)]
    path.write_bytes(b"".join(t.to_bytes(width, "little") for t in tokens))
    file = TokenFile(path, window=10, bound=40000)
    assert file.samples == 10
    read = [file.sample(i, seed=0).tolist() for i in range(20)]
    windows = [tokens[10 * i : 10 * i + 11] for i in range(10)]
    assert sorted(read[:10]) == sorted(windows)
    assert sorted(read[10:]) == sorted(windows)
    assert read[:10] != read[10:]


def test_bad_token_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with pytest.raises(InvalidFile, match="cannot read"):
        TokenFile(path, window=4, bound=10)
    path.write_bytes(bytes(8))
    with pytest.raises(InvalidFile, match="a sample needs 5"):
        TokenFile(path, window=4, bound=10)
    path.write_bytes(b"\xff\xff" * 10)
    with pytest.raises(InvalidFile, match="token 65535"):
        TokenFile(path, window=4, bound=50000).sample(0, seed=0)
