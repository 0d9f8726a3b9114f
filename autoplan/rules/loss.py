"""Losses of pairs of elements.

A sum over a shard is an addend. The mean over a shard is ``ranks`` times its addend, so it
goes through a function of the runtime that divides.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, S, rule

__all__ = ["pairwise_loss", "row_loss"]

_NONE, _SUM = 0, 2  # torch's numbers for reduction; 1 is the mean
_REDUCTION_AT = {
    "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4,
    "aten.hinge_embedding_loss.default": 3,
    "aten.margin_ranking_loss.default": 4,
    "aten.cosine_embedding_loss.default": 4,
    "aten.triplet_margin_loss.default": 7,
}
_PARTIAL = {
    f"aten.{name}.default": f"partial_{name}"
    for name in (
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "binary_cross_entropy_with_logits",
        "huber_loss",
        "binary_cross_entropy",
        "kl_div",
        "soft_margin_loss",
        "hinge_embedding_loss",
        "margin_ranking_loss",
        "cosine_embedding_loss",
        "triplet_margin_loss",
    )
}


@rule("aten.mse_loss.default", "aten.l1_loss.default", "aten.smooth_l1_loss.default",
      "aten.huber_loss.default", "aten.binary_cross_entropy.default",
      "aten.binary_cross_entropy_with_logits.default", "aten.kl_div.default",
      "aten.soft_margin_loss.default", "aten.hinge_embedding_loss.default",
      "aten.margin_ranking_loss.default")  # fmt: skip
def pairwise_loss(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim: kept without reduction, else addends."""
    reduction = view.integer(_REDUCTION_AT.get(op.target, 2), "reduction", 1)
    shape = view.shape()
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        inputs: dict[int | None, Placement] = {}
        for slot, tensor in enumerate(view.inputs):
            own = dim - (len(shape) - len(tensor.shape))
            if own >= 0 and tensor.shape[own] == size:
                inputs[slot] = S(own)
        if reduction == _NONE:
            yield view.strategy(inputs, S(dim))
        elif reduction == _SUM:
            yield view.strategy(inputs, P)
        elif op.target in _PARTIAL:
            yield view.strategy(inputs, P, call=_PARTIAL[op.target])


@rule("aten.cosine_embedding_loss.default", "aten.triplet_margin_loss.default")
def row_loss(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Losses of pairs or triplets of vectors ``[n, d]``: the rows."""
    if any(len(tensor.shape) not in (1, 2) for tensor in view.inputs) or len(view.shape()) != 2:
        return
    rows: dict[int | None, Placement] = {slot: S(0) for slot in range(len(view.inputs))}
    if len({tensor.shape[0] for tensor in view.inputs}) > 1:
        return
    reduction = view.integer(_REDUCTION_AT[op.target], "reduction", 1)
    call = "" if reduction in (_NONE, _SUM) else _PARTIAL[op.target]
    yield view.strategy(rows, S(0) if reduction == _NONE else P, call=call)
