"""A machine and a few operators to measure."""

from __future__ import annotations

import pytest

from autoplan.ir.graph import Op, Ref
from autoplan.profiler.targets import Operand, Target
from autoplan.profiles.measure.run import Machine


def target_of(name: str, shape: tuple[int, ...], target: str = "aten.relu.default") -> Target:
    """An operator on one tensor."""
    return Target(
        signature=name,
        op=Op(name="op", target=target, args=(Ref("x"),), outputs=("y",)),
        call="",
        ranks=1,
        operands=(Operand(shape=shape, dtype="float32", requires_grad=True, below=1),),
        tensors=(0,),
        library="",
    )


@pytest.fixture
def machine() -> Machine:
    """One rank of a machine that isn't this one."""
    return Machine(name="Test CPU", cores=2, ranks=1, threads=1, torch="2.13.0")


@pytest.fixture
def targets() -> list[Target]:
    """Four small operators."""
    return [target_of(f"aten.relu.default/{n}", (n, 8)) for n in (1, 2, 3, 4)]
