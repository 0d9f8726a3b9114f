"""``autoplan inspect``: text for people, one document for programs, errors as elsewhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_answer_comes_first(autoplan: Run) -> None:
    done = autoplan("inspect", "gpt2", *SMALL, "--tp", "4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("model       gpt2: ")
    assert lines[1] == "blocks      4 of 3 kinds"
    assert "attention   2 of fused 4 heads x 32 x 32, causal" in lines
    assert any(line.startswith("stage cuts  4.00 KiB in 1 tensor: 3 places") for line in lines)
    assert any("on tp 4 all can be sharded" in line for line in lines)
    assert lines[-1].startswith("next        autoplan solve gpt2")
    assert max(map(len, lines)) <= 80


def test_json_has_stable_keys_and_sums(autoplan: Run) -> None:
    done = autoplan("inspect", "gpt2", *SMALL, "--micro-batch-size", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {
        "schema_version", "model", "workload", "flop", "flop_backward", "saved_bytes", "blocks",
        "classes", "cuts", "tp", "operators", "notes",
    }  # fmt: skip
    assert found["schema_version"] == 1
    assert found["workload"] == {"micro_batch_size": 2, "seq_len": 32}
    assert found["flop"] == sum(c["flop"] * c["copies"] for c in found["classes"])
    total = sum(op["flop"] for op in found["operators"])
    assert total == found["flop"] + found["flop_backward"]
    assert sum(c["copies"] for c in found["classes"]) == found["blocks"] == len(found["cuts"]) + 1
    assert found["model"]["parameter_bytes"] == 2 * found["model"]["num_parameters"]
    assert all(op["strategies"][0] >= 1 for op in found["operators"])


def test_what_only_replicates_is_listed_with_its_reason(autoplan: Run) -> None:
    odd = [*SMALL[:1], "--set=n_embd=63", "--set=n_head=3", "--set=vocab_size=511", "--seq-len=31"]
    done = autoplan("inspect", "gpt2", *odd, "--json")
    assert done.returncode == 0, done.stderr
    whole = [op for op in json.loads(done.stdout)["operators"] if op["replicated_calls"]]
    assert whole
    assert all(op["reason"] == "no size divides by 2" for op in whole)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("gpt3",), 2),
        (("gpt2", "--tp", "0"), 2),
        (("gpt2", "--set", "layers=2"), 2),
        (("gpt2", "--seq-len", "4096"), 2),
        (("missing.py:make",), 6),
    ],
)
def test_bad_input_ends_as_elsewhere(autoplan: Run, arguments: tuple[str, ...], code: int) -> None:
    done = autoplan("inspect", *arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_file_that_does_not_capture_ends_with_its_code(autoplan: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import torch\n\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.w = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.w(x).sum() if x.sum().item() > 0 else self.w(x).mean()\n\n"
        "def make():\n    return M()\n\n"
        "def batch(batch_size, seq_len):\n    return {'x': torch.randn(batch_size, 4)}\n"
    )
    done = autoplan("inspect", "bad.py:make")
    assert done.returncode == 5, done.stderr
