"""What a cross entropy holds at its peak, whole or by classes, as torch's allocator counts."""

from __future__ import annotations

import pytest
import torch

from autoplan import runtime
from autoplan.costs.workspace import is_class_shard, workspace
from autoplan.ir.placement import Shard
from autoplan.rules import strategies
from autoplan.runtime import vocabulary
from tests.rules.engine import Sample, T, prepare
from tests.runtime.allocated import peak

RANKS, ROWS, CLASSES = 2, 64, 4096


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("by_classes", [True, False])
def test_a_loss_holds_what_its_workspace_says(monkeypatch, dtype, by_classes):
    target = T(shape=(ROWS,), dtype="int64", below=CLASSES, grad=False)
    args = (T(shape=(ROWS, CLASSES), dtype=dtype), target)
    found = prepare(Sample(target="aten.cross_entropy_loss.default", args=args))
    (chosen,) = (
        s
        for s in strategies(found.op, found.block, RANKS)
        if is_class_shard(s) == by_classes and (by_classes or not isinstance(s.inputs[0], Shard))
    )
    forward, backward = workspace(found.op, found.block, chosen, RANKS)

    monkeypatch.setattr(vocabulary, "reduce_in_place", lambda x, *_: x)
    columns = CLASSES // RANKS if by_classes else CLASSES
    scores = torch.randn(ROWS, columns, dtype=getattr(torch, dtype), requires_grad=True)
    labels = torch.randint(columns, (ROWS,))
    axis = runtime.Axis(object(), 0, RANKS)

    def loss():
        if by_classes:
            return runtime.vocab_cross_entropy(scores, labels, axis=axis)
        return torch.nn.functional.cross_entropy(scores, labels)

    size = scores.numel() * scores.element_size()
    slack = size // 16  # tensors of a number a row
    # Whole, the logarithms are what autograd saves: no workspace.
    kept = 0 if by_classes else size
    taken, result = peak(loss)
    assert kept + forward <= taken <= kept + forward + slack
    taken, _ = peak(lambda: torch.autograd.grad(result, scores))
    assert size + backward <= taken <= size + backward + slack
