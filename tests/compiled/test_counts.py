"""Fused kernels as they are priced, beside those that torch's inductor generates for a block.

A counted kernel is a group's where what it stores is asked for by a line of an operator of a
group (of a view or copy: where anything it computes is). Others, such as the sums of biases'
gradients and the pieces of an attention, belong to operators that are priced on their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoplan.capture import capture, load_model
from autoplan.costs.fusion import Fusion, fusion
from autoplan.emit import emit_program
from autoplan.ir.graph import BlockClass
from tests.plans import Setup, make_plan

HERE = Path(__file__).parent
NARROW = {"hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8}
GATED = NARROW | {"vocab_size": 512, "head_dim": 64, "num_key_value_heads": 4}
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "vit": ("vit-large", NARROW | {"intermediate_size": 2048, "image_size": 160}, 4, 0),
    "t5": (
        "t5-large",
        {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "dropout_rate": 0.0}
        | {"num_layers": 1, "num_decoder_layers": 1, "vocab_size": 512},
        4,
        128,
    ),
    "bert": (
        "bert-base",
        NARROW
        | {"intermediate_size": 2048, "vocab_size": 512}
        | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        4,
        128,
    ),
    "mixtral": (
        "mixtral-8x7b",
        GATED | {"intermediate_size": 1024, "num_local_experts": 4},
        2,
        128,
    ),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a C++ compiler"
    ),
]


@dataclass(frozen=True)
class Side:
    """One pass: kernels and bytes, predicted and counted; bytes of the other kernels."""

    predicted: tuple[int, int]
    counted: tuple[int, int]
    others: int

    @property
    def error(self) -> float:
        return self.predicted[1] / self.counted[1] - 1


class _Program:
    """Which operators of the block the lines of a program's ``model.py`` belong to."""

    def __init__(self, path: Path, block: BlockClass, fused: Fusion) -> None:
        self.lines = path.read_text().splitlines()
        members = {name for group in fused.groups for name in group.members}
        self.made = {n for op in block.ops if op.name in members for n in op.outputs}
        self.views = {n for op in block.ops for n in op.outputs if block.tensor(n).base != n}

    def assigned(self, line: int) -> set[str]:
        found = re.match(r"\s*([\w, ]+) = ", self.lines[line - 1]) if line else None
        return {name.strip() for name in found.group(1).split(",")} if found else set()

    def is_group(self, nest: dict[str, Any]) -> bool:
        stored = self.assigned(nest["line"])
        if stored and not stored & self.views:
            return bool(stored & self.made)
        return any(self.assigned(line) & self.made for line in nest["lines"])


def is_sum(kernel: dict[str, Any]) -> bool:
    """Whether it adds up gradients and does nothing else."""
    free = {"aten.add.Tensor", "aten.reshape.default", "aten.permute.default"}
    return all(set(nest["computes"]) <= free for nest in kernel["nests"])


def compare(name: str, folder: Path) -> dict[str, Side]:
    spec, settings, size, seq_len = MODELS[name]
    found = capture(load_model(spec, overrides=settings), seq_len=seq_len, dtype="float32")
    graph = found.at(size)
    emit_program(make_plan(graph, found.record(), Setup(), seq_len=seq_len), folder)
    run = subprocess.run(
        [sys.executable, str(HERE / "inductor_counts.py"), str(folder), "1"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    counts = json.loads(run.stdout.splitlines()[-1])
    block = graph.classes[graph.instances[1].block_class]
    fused = fusion(block)
    program = _Program(folder / "model.py", block, fused)
    summed = [
        3 * block.tensor(op.inputs[slot]).size
        for op in block.ops
        for slot in fused.summed.get(op.name, ())
    ]
    predicted = {
        "forward": [(g.forward_launches, g.forward) for g in fused.groups],
        "backward": [
            *((g.backward_launches, g.backward) for g in fused.groups),
            *((1, size) for size in summed),
        ],
    }
    sides = {}
    for side, kernels in counts.items():
        own = [
            kernel["bytes"]
            for kernel in kernels
            if any(map(program.is_group, kernel["nests"]))
            or (side == "backward" and is_sum(kernel))
        ]
        launches, sizes = zip(*predicted[side], strict=True)
        sides[side] = Side(
            predicted=(sum(launches), sum(sizes)),
            counted=(len(own), sum(own)),
            others=sum(kernel["bytes"] for kernel in kernels) - sum(own),
        )
    return sides


@pytest.mark.parametrize("name", ["vit", "t5"])
def test_kernels_are_as_many_and_move_the_same_bytes(name: str, tmp_path: Path) -> None:
    """What isn't priced is a number a row of each norm: 1/512 of a tensor."""
    for side, found in compare(name, tmp_path).items():
        assert found.predicted[0] == found.counted[0], (side, found)
        assert abs(found.error) < 2 / 512, (side, found)


def test_what_a_norm_after_the_sum_keeps_is_the_only_difference(tmp_path: Path) -> None:
    """Inductor keeps the normalized tensor of BERT's last norm, in place of the norm's operands.

    Its forward writes one tensor more (of 14 tensors as wide as the block) and its backward
    reads one operand less, twice (of 33).
    """
    sides = compare("bert", tmp_path)
    tensor = 4 * 128 * 512 * 4
    for side, more in (("forward", 1), ("backward", -2)):
        found = sides[side]
        assert found.predicted[0] == found.counted[0]
        missing = found.counted[1] - found.predicted[1] - more * tensor
        assert abs(missing) < 2 / 512 * found.counted[1], (side, found)


def test_a_block_with_routed_experts_is_compiled_around_them(tmp_path: Path) -> None:
    """Dynamo used to give up on the whole block, which then ran uncompiled."""
    sides = compare("mixtral", tmp_path)
    for found in sides.values():
        assert found.counted[0] >= found.predicted[0] > 6, found
