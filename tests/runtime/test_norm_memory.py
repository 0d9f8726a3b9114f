"""What a norm over the statistics of all ranks holds at its peak, as torch's allocator counts."""

from __future__ import annotations

import pytest
import torch

from autoplan import runtime
from autoplan.costs.workspace import workspace
from autoplan.ir.placement import Shard
from autoplan.rules import strategies
from autoplan.runtime import norm
from tests.rules.engine import Sample, T, prepare
from tests.runtime.allocated import peak

RANKS = 2
SHAPE = (4, 16, 32, 32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("affine", [True, False])
def test_a_synced_norm_holds_what_its_workspace_says(monkeypatch, dtype, affine):
    real = getattr(torch, dtype)
    weights = [T(shape=(16,), dtype=dtype)] * 2 if affine else [None, None]
    args = (T(shape=SHAPE, dtype=dtype), 4, *weights)
    found = prepare(Sample(target="aten.group_norm.default", args=args))
    (chosen,) = (
        s for s in strategies(found.op, found.block, RANKS) if s.inputs[0] == Shard(2) and s.call
    )
    forward, backward = workspace(found.op, found.block, chosen, RANKS)

    monkeypatch.setattr(norm, "_all_gather", lambda x, axis: torch.stack([x] * RANKS))
    monkeypatch.setattr(norm, "reduce_in_place", lambda x, *_: x)
    axis = runtime.Axis(object(), 0, RANKS)
    x = torch.randn(4, 16, 16, 32, dtype=real, requires_grad=True)
    size = x.numel() * x.element_size()
    given = [torch.randn(16, dtype=real, requires_grad=True) for _ in range(2)] if affine else []
    taken, y = peak(lambda: runtime.synced_group_norm(x, 4, *given, axis=axis))
    slack = size // 16  # statistics, weights
    assert size + forward <= taken <= size + forward + slack
    grad = torch.randn_like(y)
    taken, _ = peak(lambda: torch.autograd.grad(y, [x, *given], grad))
    assert size + backward <= taken <= size + backward + slack
