"""The meter sees allocations exactly, those of autograd included."""

from __future__ import annotations

import torch

from benchmarks.accuracy.meter import Meter, _Blocks


def test_known_allocations():
    with Meter() as meter:
        kept = torch.empty(250)
        meter.span(lambda: torch.empty(1000).fill_(1))
        meter.span(lambda: None)
        del kept
        meter.span(lambda: torch.empty(3, dtype=torch.float64))
    assert meter.peaks() == [1000 + 4000, 1000, 24]


def test_backward_of_a_product():
    with Meter() as meter:
        x = torch.ones(100, 10, requires_grad=True)

        def work() -> None:
            y = x * x  # 4000
            y.sum().backward()  # 4 + 4 of the sum and its gradient, 3 x 4000 of x's

        meter.span(work)
    # x, y, sum and its gradient; both products, and the one of two that was added first.
    assert meter.peaks() == [4 * 4000 + 2 * 4]


def test_memory_given_to_another_has_ended():
    live = _Blocks()
    live.change(1000, 100)
    live.change(2000, 100)
    live.change(1050, 1000)
    assert live.total == 1000
    live.change(2000, -100)
    assert live.total == 1000
    live.change(1050, -1000)
    assert live.total == 0
