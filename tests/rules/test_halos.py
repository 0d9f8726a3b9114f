"""Halo ranges: at drawn sizes the ranks' windows give the whole result, or are not offered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autoplan.rules import strategies
from autoplan.runtime import record_collectives

from .engine import Sample, check_strategy, prepare, threaded_reductions
from .samples import call, t

Oracle = Callable[[Sample, int], list[str]]

_DRAWN = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def readable(size: int, outputs: int, ranks: int, reads: Callable[[int], list[int]]) -> bool:
    """Whether each rank's outputs read rows of itself and its neighbours only, row by row."""
    if size % ranks or outputs % ranks:
        return False
    for rank in range(ranks):
        mine = range(rank * outputs // ranks, (rank + 1) * outputs // ranks)
        rows = [row for output in mine for row in reads(output) if 0 <= row < size]
        owners = {row // (size // ranks) for row in rows}
        if not owners <= {rank - 1, rank, rank + 1}:
            return False
    return True


def shards(found: list[str], dim: int) -> list[str]:
    return [text for text in found if text.startswith(f"S({dim})")]


@_DRAWN
@given(
    size=st.integers(2, 24),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 4),
    dilation=st.integers(1, 3),
    groups=st.sampled_from((1, 2)),
    ranks=st.sampled_from((2, 3, 4)),
)
def test_convolutions(
    size: int, kernel: int, stride: int, padding: int, dilation: int, groups: int, ranks: int,
    oracle: Oracle,
) -> None:  # fmt: skip
    span = dilation * (kernel - 1) + 1
    outputs = (size + 2 * padding - span) // stride + 1
    assume(outputs > 0)
    sample = call(
        "conv1d.default", t(1, 2, size), t(2, 2 // groups, kernel), t(2), (stride,), (padding,),
        (dilation,), groups,
    )  # fmt: skip
    found = oracle(sample, ranks)

    def reads(output: int) -> list[int]:
        return [output * stride - padding + tap * dilation for tap in range(kernel)]

    offered = bool(shards(found, 2))
    legal = readable(size, outputs, ranks, reads)
    assert offered <= legal
    # A rank that reads padding only is not offered, nor one whose gaps reach past a neighbour.
    dense = dilation == 1 and padding < span
    assert offered == legal or not dense or stride > span


@_DRAWN
@given(
    size=st.integers(2, 16),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    more=st.integers(0, 3),
    dilation=st.integers(1, 2),
    ranks=st.sampled_from((2, 3, 4)),
)
def test_transposed_convolutions(
    size: int, kernel: int, stride: int, padding: int, more: int, dilation: int, ranks: int,
    oracle: Oracle,
) -> None:  # fmt: skip
    outputs = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1
    assume(outputs > 0 and more < max(stride, dilation))
    sample = call(
        "conv_transpose1d.default", t(1, 2, size), t(2, 3, kernel), None, (stride,), (padding,),
        (more,), 1, (dilation,),
    )  # fmt: skip
    found = oracle(sample, ranks)
    if kernel == stride and not (padding or more) and dilation == 1 and size % ranks == 0:
        assert shards(found, 2) == ["S(2),R -> S(2)"], "no message where windows do not overlap"


@_DRAWN
@given(
    size=st.integers(2, 20),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    ceil_mode=st.booleans(),
    include=st.booleans(),
    kind=st.sampled_from(("max", "avg")),
    ranks=st.sampled_from((2, 3, 4)),
)
def test_pools(
    size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, include: bool, kind: str,
    ranks: int, oracle: Oracle,
) -> None:  # fmt: skip
    assume(2 * padding <= kernel and size + 2 * padding >= kernel)
    more = ((1,), ceil_mode) if kind == "max" else (ceil_mode, include)
    sample = call(f"{kind}_pool1d.default", t(1, 2, size), (kernel,), (stride,), (padding,), *more)
    oracle(sample, ranks)


@_DRAWN
@given(
    size=st.integers(2, 16),
    factor=st.integers(1, 4),
    ranks=st.sampled_from((2, 3, 4)),
    name=st.sampled_from(("linear", "nearest")),
)
def test_interpolations(size: int, factor: int, ranks: int, name: str, oracle: Oracle) -> None:
    more = (False, None) if name == "linear" else (None,)
    found = oracle(call(f"upsample_{name}1d.vec", t(1, 2, size), (size * factor,), *more), ranks)
    assert bool(shards(found, 2)) == (size % ranks == 0)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "sample",
    [
        call("conv2d.default", t(2, 3, 16, 5), t(4, 3, 7, 3), None, (2, 1), (3, 1)),
        call("conv2d.padding", t(2, 3, 16, 5), t(4, 3, 3, 3), None, (1, 1), "same"),
        call("conv_transpose1d.default", t(2, 3, 16), t(3, 4, 3), None, (2,), (1,), (1,)),
        call("max_pool2d.default", t(2, 3, 16, 5), (3, 3), (2, 2), (1, 1)),
        call("avg_pool2d.default", t(2, 3, 16, 5), (3, 3), (1, 1), (1, 1)),
        call("upsample_bilinear2d.vec", t(2, 3, 16, 5), None, False, (2.0, 2.0)),
        call("group_norm.default", t(2, 4, 16), 2, t(4), t(4)),
        call("instance_norm.default", t(2, 4, 16), t(4), t(4), None, None, True, 0.1, 1e-5, False),
        call("batch_norm.default", t(4, 4, 16), t(4), t(4), None, None, True, 0.1, 1e-5, False),
        call("layer_norm.default", t(4, 16), (16,), t(16), t(16)),
        call("rms_norm.default", t(4, 16), (16,), t(16)),
        call("softmax.int", t(4, 16), 1),
        call("log_softmax.int", t(4, 16), 1),
    ],
    ids=lambda sample: sample.target.removeprefix("aten.") if isinstance(sample, Sample) else None,
)
def test_collectives_issued_are_those_charged(
    sample: Sample, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threaded_reductions(monkeypatch)
    prepared = prepare(sample)
    checked = 0
    for strategy in strategies(prepared.op, prepared.block, ranks):
        if not strategy.inner:
            continue
        with record_collectives() as issued:
            check_strategy(prepared, strategy, ranks)
        charged = [(inner.kind.value, inner.payload) for inner in strategy.inner] * ranks
        assert sorted(issued) == sorted(charged), str(strategy)
        checked += 1
    assert checked
