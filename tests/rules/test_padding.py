"""Shards of a vocabulary that does not divide: what offers them, and what padding may hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autoplan import runtime
from autoplan.ir.graph import Const
from autoplan.ir.placement import Shard
from autoplan.rules import strategies

from .engine import Sample, T, on_ranks, prepare, shard, threaded_reductions
from .samples import ids, t

_V, _ROWS, _HIDDEN = 11, 6, 4
_LABELS = T(shape=(_ROWS,), dtype="int64", values=(1, -100, 5, 0, 10, 8))

Oracle = Callable[[Sample, int], list[str]]


def _call(target: str, *args: object, **kw: object) -> Sample:
    read = 1 if "bag" in target else None
    return Sample(target=f"aten.{target}", args=args, kwargs=kw, padded=(_V,), read=read)


_LOGITS = t(2, 3, _V)
_OFFERED = {
    "table": (_call("embedding.default", t(_V, _HIDDEN), ids(2, 3, below=_V)), "S(0,pad),R -> P"),
    "table, padding_idx": (
        _call("embedding.default", t(_V, _HIDDEN), ids(2, 3, below=_V), 10), "S(0,pad),R -> P",
    ),
    "linear": (_call("linear.default", t(2, 3, _HIDDEN), t(_V, _HIDDEN)),
               "R,S(0,pad) -> S(2,pad)"),
    "linear, bias": (_call("linear.default", t(2, 3, _HIDDEN), t(_V, _HIDDEN), t(_V)),
                     "R,S(0,pad),S(0,pad) -> S(2,pad)"),
    "addmm": (_call("addmm.default", t(_V), t(_ROWS, _HIDDEN), t(_HIDDEN, _V)),
              "S(0,pad),R,S(1,pad) -> S(1,pad)"),
    "addmm, scalar bias": (_call("addmm.default", t(1), t(_ROWS, _HIDDEN), t(_HIDDEN, _V)),
                           "R,R,S(1,pad) -> S(1,pad)"),
    "mm": (_call("mm.default", t(_ROWS, _HIDDEN), t(_HIDDEN, _V)), "R,S(1,pad) -> S(1,pad)"),
    "matmul": (_call("matmul.default", t(2, 3, _HIDDEN), t(_HIDDEN, _V)),
               "R,S(1,pad) -> S(2,pad)"),
    "transpose": (_call("t.default", t(_V, _HIDDEN)), "S(0,pad) -> S(1,pad)"),
    "permute": (_call("permute.default", _LOGITS, (2, 0, 1)), "S(2,pad) -> S(0,pad)"),
    "view": (_call("view.default", _LOGITS, (_ROWS, _V)), "S(2,pad) -> S(1,pad)"),
    "view, batch of one": (_call("reshape.default", t(1, 3, _V), (3, _V)), "S(2,pad) -> S(1,pad)"),
    "slice": (_call("slice.Tensor", _LOGITS, 1, 0, 2), "S(2,pad) -> S(2,pad)"),
    "select": (_call("select.int", _LOGITS, 1, -1), "S(2,pad) -> S(1,pad)"),
    "cast": (_call("to.dtype", t(2, 3, _V, dtype="float32"), Const("dtype", "float64")),
             "S(2,pad) -> S(2,pad)"),
    "bags": (_call("embedding_bag.default", t(_V, _HIDDEN), ids(6, below=_V),
                   T(shape=(3,), dtype="int64", values=(0, 1, 4)), False, 1),
             "S(0,pad),R,R -> P"),
    "softcap": (_call("tanh.default", _LOGITS), "S(2,pad) -> S(2,pad)"),
    "scale": (_call("mul.Tensor", _LOGITS, 0.5), "S(2,pad) -> S(2,pad)"),
    "scale, learned": (_call("mul.Tensor", _LOGITS, t(3, 1)), "S(2,pad),R -> S(2,pad)"),
    "bias": (_call("add.Tensor", _LOGITS, t(_V)), "S(2,pad),S(0,pad) -> S(2,pad)"),
    "temperature": (_call("div.Tensor", _LOGITS, t(1, low=0.5)), "S(2,pad),R -> S(2,pad)"),
    "loss": (_call("cross_entropy_loss.default", t(_ROWS, _V), _LABELS),
             "S(1,pad),R -> R [vocab_cross_entropy]"),
    "loss, sum": (_call("cross_entropy_loss.default", t(_ROWS, _V), _LABELS, None, 2),
                  "S(1,pad),R -> R [vocab_cross_entropy]"),
    "loss, smoothed": (
        _call("cross_entropy_loss.default", t(_ROWS, _V), _LABELS, None, 1, -100, 0.2),
        "S(1,pad),R -> R [vocab_cross_entropy]",
    ),
    "loss, each row": (_call("cross_entropy_loss.default", t(_ROWS, _V), _LABELS, None, 0),
                       "S(1,pad),R -> R [vocab_cross_entropy]"),
}  # fmt: skip


@pytest.mark.parametrize("name", _OFFERED)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_padded_shards_equal_the_whole(name: str, ranks: int, oracle: Oracle) -> None:
    sample, expected = _OFFERED[name]
    assert any(text.startswith(expected) for text in oracle(sample, ranks))


_REFUSED = {
    "reduced": _call("sum.dim_IntList", _LOGITS, (-1,)),
    "mean": _call("mean.dim", _LOGITS, (-1,)),
    "softmax": _call("softmax.int", _LOGITS, -1),
    "contracted": _call("mm.default", t(_ROWS, _V), t(_V, _HIDDEN)),
    "row parallel": _call("linear.default", t(2, _V), t(_HIDDEN, _V)),
    "merged": _call("view.default", _LOGITS, (2, 3 * _V)),
    "sliced": _call("slice.Tensor", _LOGITS, 2, 1, 9),
    "flipped": _call("flip.default", _LOGITS, (2,)),
    "repeated": _call("repeat_interleave.self_int", _LOGITS, 2, 2),
    "infinite slope": _call("log.default", t(2, _V, low=0.1)),
    "divisor": _call("div.Tensor", _LOGITS, t(_V, low=0.5)),
    "weighted loss": _call("cross_entropy_loss.default", t(_ROWS, _V), _LABELS,
                           T(shape=(_V,), low=0.5, grad=False)),
}  # fmt: skip


@pytest.mark.parametrize("name", _REFUSED)
def test_padding_is_not_offered_where_it_could_leak(name: str, oracle: Oracle) -> None:
    assert not any("pad" in text for text in oracle(_REFUSED[name], 4))


@pytest.mark.parametrize(("size", "ranks"), [(12, 2), (12, 4), (5, 4), (9, 7), (2, 3)])
def test_no_padding_where_it_divides_or_a_rank_would_be_empty(size: int, ranks: int) -> None:
    sample = Sample(
        target="aten.embedding.default", args=(t(size, 4), ids(3, below=size)), padded=(size,)
    )
    prepared = prepare(sample)
    assert not any("pad" in str(s) for s in strategies(prepared.op, prepared.block, ranks))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e300])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_garbage_in_the_padding_never_reaches_loss_or_gradient(
    garbage: float, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threaded_reductions(monkeypatch)
    torch.manual_seed(0)
    logits = torch.randn(_ROWS, _V, dtype=torch.float64, requires_grad=True)
    target = torch.tensor(_LABELS.values)
    expected = torch.nn.functional.cross_entropy(logits, target)
    (whole,) = torch.autograd.grad(expected, logits)
    placement = Shard(1, pad=True)

    def body(axis: runtime.Axis) -> tuple[torch.Tensor, torch.Tensor]:
        local = shard(logits.detach(), placement, axis.rank, ranks, garbage).requires_grad_()
        loss = runtime.vocab_cross_entropy(local, target, classes=_V, axis=axis)
        (gradient,) = torch.autograd.grad(loss, local)
        return loss.detach(), gradient

    found = on_ranks(ranks, body)
    for loss, _ in found:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    gradient = torch.cat([part for _, part in found], 1)
    torch.testing.assert_close(gradient[:, :_V], whole, rtol=1e-12, atol=1e-15)
    assert torch.equal(gradient[:, _V:], torch.zeros_like(gradient[:, _V:]))


def test_more_classes_than_columns_are_refused() -> None:
    axis = runtime.Axis(group=object(), rank=1, size=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="20 classes on 2 ranks, but each has 6 columns"):
        runtime.vocab_cross_entropy(torch.zeros(2, 6), torch.tensor([0, 1]), classes=20, axis=axis)
