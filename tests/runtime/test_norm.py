"""Running statistics of batch norm on shards, and its numbers in low precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autoplan import runtime
from tests.rules.engine import on_ranks, threaded_reductions

SETTINGS = (True, 0.1, 1e-5, False)


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    threaded_reductions(monkeypatch)
    yield
    torch.set_num_threads(before)


def whole(steps):
    """Running statistics after batches of the unsharded operator, and its last output."""
    mean, var = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    for x in steps:
        y = torch.ops.aten.batch_norm(x, None, None, mean, var, *SETTINGS)
    return mean, var, y


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_every_rank_ends_with_the_whole_running_statistics(ranks, dim):
    torch.manual_seed(0)
    steps = [3 + 2 * torch.randn(4, 8, 4, 4, dtype=torch.float64) for _ in range(3)]
    mean, var, y = whole(steps)
    call = runtime.channel_batch_norm if dim == 1 else runtime.synced_batch_norm

    def body(axis):
        own = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
        for x in steps:
            local = x.chunk(ranks, dim)[axis.rank]
            found = call(local, None, None, *own, *SETTINGS, axis=axis)
        return *own, found

    for rank, (found_mean, found_var, found) in enumerate(on_ranks(ranks, body)):
        torch.testing.assert_close(found_mean, mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found_var, var, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found, y.chunk(ranks, dim)[rank], rtol=1e-12, atol=1e-12)


class Block(nn.Module):
    def __init__(self, axis, call):
        super().__init__()
        self.axis, self.call = axis, call
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))
        self.register_buffer("var", torch.ones(8, dtype=torch.float64))

    def forward(self, x):
        weight = self.weight
        if self.call is runtime.channel_batch_norm:
            weight = weight.chunk(self.axis.size)[self.axis.rank]
        return self.call(x, weight, None, self.mean, self.var, *SETTINGS, axis=self.axis)


@pytest.mark.parametrize("name", ["batch_norm", "channel_batch_norm", "synced_batch_norm"])
def test_recomputation_does_not_count_a_batch_twice(name):
    torch.manual_seed(0)
    x = torch.randn(4, 8, 4, dtype=torch.float64)
    mean, var, _ = whole([x])
    dim = {"batch_norm": None, "channel_batch_norm": 1, "synced_batch_norm": 2}[name]

    def body(axis):
        block = Block(axis, getattr(runtime, name))
        local = x if dim is None else x.chunk(2, dim)[axis.rank]
        runtime.checkpoint(block, local.clone().requires_grad_()).square().sum().backward()
        assert block.weight.grad is not None
        return block.mean, block.var

    for found in on_ranks(2, body):
        torch.testing.assert_close(found, (mean, var), rtol=1e-12, atol=1e-12)


def test_a_large_mean_does_not_lose_the_variance():
    torch.manual_seed(0)
    x = 1e4 + torch.randn(4, 8, 64)
    expected = torch.ops.aten.batch_norm(x.double(), None, None, None, None, *SETTINGS)

    def body(axis):
        local = x.chunk(2, 0)[axis.rank]
        return runtime.synced_batch_norm(local, None, None, None, None, *SETTINGS, axis=axis)

    found = torch.cat(on_ranks(2, body))
    assert (found - expected).abs().max() < 2e-3


def test_bfloat16_statistics_are_float32():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 8, 64).bfloat16(), torch.rand(8).bfloat16()
    expected = torch.ops.aten.batch_norm(x.float(), weight.float(), None, None, None, *SETTINGS)

    def body(axis):
        mean, var = torch.zeros(8), torch.ones(8)
        local = x.chunk(2, 0)[axis.rank]
        y = runtime.synced_batch_norm(local, weight, None, mean, var, *SETTINGS, axis=axis)
        assert y.dtype == torch.bfloat16
        return y

    found = torch.cat(on_ranks(2, body))
    torch.testing.assert_close(found.float(), expected, rtol=8e-3, atol=8e-3)
