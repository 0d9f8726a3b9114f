"""What a CPU's convolution holds at its peak, as torch's allocator counts, and as predicted."""

from __future__ import annotations

import pytest
import torch

from autoplan.costs.convolution import convolution_copies
from autoplan.ir.hardware import HostConvolutions
from autoplan.rules import strategies
from tests.rules.engine import Sample, T, prepare
from tests.runtime.allocated import peak

LANES = {"AVX2": 8, "AVX512": 16}.get(torch.backends.cpu.get_cpu_capability(), 0)
SLACK = 2**18  # buffers of a row


def size(x):
    return x.numel() * x.element_size()


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Input, channels out, kernel, stride, dilation, transposed.
EXACT = [
    ((4, 24, 64, 64), 24, 3, 1, 1, False),
    ((4, 20, 64, 64), 12, 3, 1, 1, False),  # channels filled up to vectors
    ((4, 3, 64, 64), 24, 3, 1, 1, False),  # read as they are
    ((4, 48, 64, 64), 24, 3, 1, 1, False),
    ((4, 96, 8, 8), 192, 3, 1, 1, False),  # the weight is the larger part
    ((4, 24, 64, 64), 40, 1, 1, 1, False),  # as a product, without copies
    ((16, 24, 32, 32), 40, 1, 1, 1, False),
    ((4, 16, 256), 24, 3, 1, 1, False),
    ((1, 24, 32, 32), 24, 3, 1, 1, False),
    ((1, 16, 32, 32), 24, 3, 1, 1, False),  # too small: columns
    ((4, 48, 32, 32), 24, 3, 1, 1, True),
]
CLOSE = [
    ((4, 24, 64, 64), 24, 3, 2, 1, False),  # its gradient has channels last
    ((4, 48, 32, 32), 24, 2, 2, 1, True),
    ((4, 192, 8, 8), 96, 2, 2, 1, True),
]


def predicted_and_taken(case, dtype="float32", *, wanted=(True, True)):
    shape, out, kernel, stride, dilation, transposed = case
    space = len(shape) - 2
    padding = 0 if transposed and kernel == stride else dilation * (kernel // 2)
    weights = (shape[1], out) if transposed else (out, shape[1])
    settings = [[stride] * space, [padding] * space, [dilation] * space, transposed, [0] * space, 1]
    sample = Sample(
        target="aten.convolution.default",
        args=(
            T(shape=shape, dtype=dtype, grad=wanted[0]),
            T(shape=(*weights, *(kernel,) * space), dtype=dtype, grad=wanted[1]),
            None,
            *settings,
        ),
    )
    found = prepare(sample)
    strategy = next(iter(strategies(found.op, found.block, 1)))
    host = HostConvolutions(LANES)
    forward, backward = convolution_copies(found.op, found.block, strategy, 1, host)
    real = getattr(torch, dtype)
    x = torch.randn(shape, dtype=real, requires_grad=wanted[0])
    weight = torch.randn(*weights, *(kernel,) * space, dtype=real, requires_grad=wanted[1])
    first, y = peak(lambda: torch.ops.aten.convolution(x, weight, None, *settings))
    grad = torch.randn_like(y)
    read = [one for one in (x, weight) if one.requires_grad]
    second, _ = peak(lambda: torch.autograd.grad(y, read, grad))
    return (size(y) + forward, sum(map(size, read)) + backward), (first, second)


needs_vectors = pytest.mark.skipif(not LANES, reason="not a CPU whose vectors are known")


@needs_vectors
@pytest.mark.parametrize("case", EXACT, ids=str)
def test_a_convolution_holds_what_is_predicted(case):
    predicted, taken = predicted_and_taken(case)
    assert taken == predicted


@needs_vectors
@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_a_convolution_that_steps_copies_its_result_twice(case):
    predicted, taken = predicted_and_taken(case)
    for said, found in zip(predicted, taken, strict=True):
        assert said <= found <= said + SLACK


@needs_vectors
@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=str)
def test_a_gradient_that_nobody_wants_takes_nothing(wanted):
    predicted, taken = predicted_and_taken(EXACT[0], wanted=wanted)
    assert taken == predicted


@needs_vectors
def test_a_type_without_kernels_is_unfolded():
    predicted, taken = predicted_and_taken(EXACT[0], dtype="float64")
    assert taken == predicted
