"""What torch's checkpoint keeps of a block, beside what is predicted."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from handmade_blocks import R, block, linear, strategy, tensor, unary
from torch import nn

from autoplan.costs.liveness import liveness
from autoplan.costs.memory import GENERATOR_STATE
from autoplan.ir.graph import TensorKind
from autoplan.ir.recompute import Recompute
from autoplan.runtime import checkpoint, checkpoint_selectively

ROWS, WIDTH = 16, 8


class _Twice(nn.Module):
    def forward(self, x):
        return torch.cat([x, x], 1)


class _Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def _predicted(*, saves: bool):
    tensors = [
        tensor("x", (ROWS, WIDTH), TensorKind.BOUNDARY),
        tensor("y", (ROWS, 2 * WIDTH)),
    ]
    if saves:
        tensors.insert(1, tensor("w", (2 * WIDTH, WIDTH), TensorKind.PARAMETER))
        made = block([linear("op", "x", "w", "y", 1)], tensors, parameters=("w",))
        return liveness(made, {"op": strategy([R, R], [R])}, (R,), (R,), 1)
    made = block([unary("op", "aten.cat.default", "x", "y", saved=())], tensors)
    return liveness(made, {"op": strategy([R], [R])}, (R,), (R,), 1)


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize(
    ("level", "run"), [(Recompute.FULL, checkpoint), (Recompute.SELECTIVE, checkpoint_selectively)]
)
def test_a_block_that_saves_nothing_keeps_nothing(saves, level, run):
    module = _Linear() if saves else _Twice()
    x = torch.randn(ROWS, WIDTH, requires_grad=True) * 1.0
    kept = weakref.ref(x)
    y = run(module, x)
    del x
    gc.collect()
    held = _predicted(saves=saves).at(level)
    assert (kept() is not None) == held.kept_inputs[0] == saves
    assert bool(held.kept) == saves
    y.sum().backward()


def test_each_block_keeps_the_state_of_the_generator():
    assert torch.get_rng_state().nbytes == GENERATOR_STATE
