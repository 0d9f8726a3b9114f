"""Calls that are declared of operators, against those that a dispatch mode counts."""

from __future__ import annotations

import pytest

from autoplan.costs.dispatched import CALLS, OPERATORS, dispatched
from autoplan.rules import strategies
from tests.rules.dispatched import counted
from tests.rules.engine import Sample, T, prepare

B, S, H = 4, 8, 16
_PASSED = "aten.detach.default"


def _t(*shape, grad=True, low=-1.0):
    return T(shape=shape, dtype="float32", grad=grad, low=low)


def _integers(*shape):
    return T(shape=shape, dtype="int64", below=H)


_X, _IMAGE, _W, _B = _t(B, S, H), _t(B, H, 8, 8), _t(H, H), _t(H)
_HEADS = _t(B, 4, S, 8)
_BUFFERS = _t(H, grad=False), _t(H, grad=False, low=0.5)
_SAMPLES = [
    ("linear.default", (_X, _W)),
    ("linear.default", (_X, _W, _B)),
    ("matmul.default", (_X, _t(B, H, S))),
    ("addmm.default", (_B, _t(S, H), _W)),
    ("layer_norm.default", (_X, [H], _B, _B)),
    ("rms_norm.default", (_X, [H], _B)),
    ("group_norm.default", (_IMAGE, 4, _B, _B)),
    ("instance_norm.default", (_IMAGE, _B, _B, None, None, True, 0.1, 1e-5, False)),
    ("batch_norm.default", (_IMAGE, _B, _B, *_BUFFERS, True, 0.1, 1e-5, False)),
    ("conv2d.default", (_IMAGE, _t(H, H, 3, 3), None, [1, 1], [1, 1])),
    ("conv_transpose2d.input", (_IMAGE, _t(H, H, 2, 2), _B, [2, 2])),
    ("max_pool2d.default", (_IMAGE, [2, 2], [2, 2])),
    ("scaled_dot_product_attention.default", (_HEADS, _HEADS, _HEADS, None, 0.0, True)),
    ("cross_entropy_loss.default", (_t(B * S, H), _integers(B * S))),
    ("embedding.default", (_t(H, 8), _integers(B, S))),
    ("softmax.int", (_X, -1)),
    ("log_softmax.int", (_X, -1)),
    ("gelu.default", (_X,)),
    ("dropout.default", (_X, 0.1, True)),
    ("add.Tensor", (_X, _X)),
    ("cat.default", ([_X, _X], 1)),
]


@pytest.mark.parametrize("case", _SAMPLES, ids=lambda case: case[0])
def test_declared_calls_are_those_that_a_mode_sees(monkeypatch, case):
    target, args = case
    found = prepare(Sample(target=f"aten.{target}", args=args))
    by_call = {s.call: s for s in strategies(found.op, found.block, 2)}
    for strategy in by_call.values():
        calls = [name for name in counted(monkeypatch, found, strategy, 2) if name != _PASSED]
        assert len(calls) == dispatched(found.op, strategy), (strategy.call, calls)


def test_every_declared_number_is_checked():
    names = {target.partition(".")[0] for target, _ in _SAMPLES}
    seen = set()
    for target, args in _SAMPLES:
        found = prepare(Sample(target=f"aten.{target}", args=args))
        seen |= {strategy.call for strategy in strategies(found.op, found.block, 2)}
    assert set(CALLS) <= seen
    assert set(OPERATORS) <= names
