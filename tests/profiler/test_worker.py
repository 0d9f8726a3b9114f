"""Operators run for real: their times, and those that can't be run."""

from __future__ import annotations

import json
import re

import pytest

from autoplan.ir.graph import Op, Ref
from autoplan.profiler.operator import Operator
from autoplan.profiler.targets import Operand, Target, targets_to_json
from autoplan.profiler.worker import _timing, measure
from autoplan.profiles.measure.device import Cpu
from tests.profiler.conftest import target_of

CPU = Cpu()


def record(target: Target) -> dict[str, object]:
    (made,) = json.loads(targets_to_json([target]))
    return dict(made)


def test_a_product_is_timed_and_its_spread_told() -> None:
    product = Target(
        signature="product",
        op=Op(name="p", target="aten.mm.default", args=(Ref("a"), Ref("b")), outputs=("c",)),
        call="",
        ranks=1,
        operands=(
            Operand(shape=(256, 256), dtype="float32", requires_grad=True, below=1),
            Operand(shape=(256, 256), dtype="float32", requires_grad=True, below=1),
        ),
        tensors=(0, 1),
        library="",
    )
    timing = measure(Operator(record(product), CPU.place), CPU, 0.05)
    assert timing["forward"] > 1e-6
    assert timing["backward"] > 1e-6
    assert timing["spread"] >= 0
    assert timing["repeats"] >= 3


def test_what_wants_no_gradient_has_no_backward() -> None:
    frozen = target_of("relu", (64, 64))
    operand = Operand(shape=(64, 64), dtype="float32", requires_grad=False, below=1)
    without = Target(
        signature="relu", op=frozen.op, call="", ranks=1, operands=(operand,), tensors=(0,),
        library="",
    )  # fmt: skip
    assert measure(Operator(record(without), CPU.place), CPU, 0.01)["backward"] == 0.0


def test_out_of_memory_is_recorded() -> None:
    timing = _timing(record(target_of("huge", (2**43,))), CPU, 0.01)
    assert timing == {"signature": "huge", "failure": "out of memory"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("aten.linalg_inv.default", "RuntimeError: .*must be batches of square matrices"),
        ("aten.absent.default", "AttributeError: .*absent"),
        ("aten.add.Tensor", "RuntimeError"),  # an argument is missing
    ],
)
def test_any_failure_is_recorded_with_its_reason(target: str, words: str) -> None:
    timing = _timing(record(target_of("broken", (3, 4), target)), CPU, 0.01)
    assert set(timing) == {"signature", "failure"}
    assert len(timing["failure"]) <= 200
    assert re.match(words, timing["failure"])


def test_offsets_of_bags_ascend_from_zero() -> None:
    operands = (
        Operand(shape=(16, 4), dtype="float32", requires_grad=True, below=16),
        Operand(shape=(12,), dtype="int64", requires_grad=False, below=16),
        Operand(shape=(3,), dtype="int64", requires_grad=False, below=12, ascend=True),
    )
    bags = Target(
        signature="bags",
        op=Op(
            name="bags",
            target="aten.embedding_bag.padding_idx",
            args=(Ref("w"), Ref("i"), Ref("o"), False, 0, False, None, False, None),
            outputs=("a", "b", "c", "d"),
        ),
        call="",
        ranks=1,
        operands=operands,
        tensors=(0, 1, 2),
        library="",
    )
    operator = Operator(record(bags), CPU.place)
    assert operator.operands()[2].tolist() == [0, 4, 8]
    assert measure(operator, CPU, 0.01)["repeats"] > 0
