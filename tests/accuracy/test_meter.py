"""The meter sees allocations exactly, those of autograd and of other threads included."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
import torch

from benchmarks.accuracy.meter import Meter, build

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="counting bytes needs a C++ compiler"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("meter"))


def test_known_allocations(library):
    with Meter(library) as meter:
        before = meter.live()
        kept = torch.empty(250)
        meter.span(lambda: torch.empty(1000).fill_(1))
        meter.span(lambda: None)
        del kept
        meter.span(lambda: torch.empty(3, dtype=torch.float64))
    assert [peak - before for peak in meter.peaks] == [1000 + 4000, 1000, 24]


def test_backward_of_a_product(library):
    with Meter(library) as meter:
        before = meter.live()
        x = torch.ones(100, 10, requires_grad=True)

        def work() -> None:
            y = x * x  # 4000
            y.sum().backward()  # 4 + 4 of the sum and its gradient, 3 x 4000 of x's

        meter.span(work)
    # x, y, sum and its gradient; both products, and the one of two that was added first.
    assert meter.peaks[0] - before == 4 * 4000 + 2 * 4


def test_other_threads_are_seen(library):
    with Meter(library) as meter:
        before = meter.live()
        held = [torch.empty(1000)]
        assert meter.live() == before + 4000
        # Neither thread carries any state of this one, as those of gloo.
        for work, after in ((held.clear, 0), (lambda: held.append(torch.empty(500)), 2000)):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert meter.live() == before + after


def test_blocks_end_after_the_meter(library):
    with Meter(library) as meter:
        before = meter.live()
        kept = torch.empty(1000)
    uncounted = torch.empty(1000)
    del kept
    assert meter.live() == before
    del uncounted
    assert meter.live() == before


def test_missing_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="install g"):
        build(tmp_path)
