"""The two ends of a language model: embedding and cross entropy.

Both may be sharded over the vocabulary. The runtime's ``vocab_embedding`` looks up the ids
of its rows and leaves zeros elsewhere, which gives addends; ``vocab_cross_entropy`` reduces
maximum, sum of exponentials and target logit, each one number a row, and never gathers the
logits. A vocabulary that does not divide is padded (`OpView.padded`): no id looks padding up,
and the loss leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Op, dtype_size
from autoplan.ir.placement import CollectiveKind, Shard
from autoplan.ir.strategy import InnerCollective, OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["bags", "cross_entropy", "embedding", "likelihood"]

_NONE, _MEAN, _SUM = 0, 1, 2  # torch's numbers for reduction
_LARGEST = 2  # and for the mode of a bag


@rule("aten.embedding.default")
def embedding(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``weight [v, h]``, ids -> ids' shape and ``h``: ids, columns, vocabulary."""
    ids = view.shape(1)
    if view.arg(4, "sparse", False) is True:
        return
    yield view.strategy({0: S(1)}, S(len(ids)))
    if view.arg(3, "scale_grad_by_freq", False) is True:  # counts over all ids
        return
    for dim, size in enumerate(ids):
        for shard in view.shards(dim, size):
            yield view.strategy({1: shard}, shard)
    for rows in (S(0), *view.padded(0, view.shape(0)[0])):
        yield view.strategy({0: rows}, P, call="vocab_embedding")


@rule("aten.embedding_bag.padding_idx", "aten.embedding_bag.default",
      "aten._embedding_bag.default")  # fmt: skip
def bags(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``weight [v, h]``, indices, offsets -> ``[bags, h]`` and what only torch reads.

    Columns; bags, of which a rank cuts its own out of the indices; rows of sums and means.
    """
    rest = (R,) * (len(view.outputs) - 1)
    frequencies = view.arg(3, "scale_grad_by_freq", False) is True
    if frequencies or view.arg(5, "sparse", False) is True:
        return
    largest = view.integer(4, "mode", 0) == _LARGEST
    yield view.strategy({0: S(1)}, S(1), *rest)
    yield view.strategy({}, S(0), *rest, call="row_embedding_bag")
    for rows in () if largest else (S(0), *view.padded(0, view.shape(0)[0])):
        yield view.strategy({0: rows}, P, *rest, call="vocab_embedding_bag")


def _localize_classes(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    """Padded logits do not show how many classes there are."""
    placement = strategy.inputs[0]
    if not isinstance(placement, Shard) or not placement.pad:
        return op
    return replace(op, kwargs=(*op.kwargs, ("classes", view.shape()[1])))


@rule("aten.cross_entropy_loss.default", localizer=_localize_classes)
def cross_entropy(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Logits ``[n, v, ...]`` over everything but the classes, and ``[n, v]`` over those."""
    logits, target = view.inputs[0], view.inputs[1]
    yield from _rows(view, "row_cross_entropy")
    weighted = view.slot(2, "weight") is not None
    if len(logits.shape) == 2 and target.dtype == "int64" and not weighted:
        rows = logits.shape[0] * max(dtype_size(logits.dtype), 4)  # reduced in float32
        inner = (InnerCollective(CollectiveKind.ALL_REDUCE, rows),) * 3
        for classes in (S(1), *view.padded(1, logits.shape[1])):
            yield view.strategy({0: classes}, R, call="vocab_cross_entropy", inner=inner)


@rule("aten.nll_loss.default", "aten.nll_loss_nd.default")
def likelihood(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Log probabilities ``[n, v, ...]`` over everything but the classes."""
    yield from _rows(view, "row_nll_loss")


def _rows(view: OpView, call: str) -> Iterator[OpStrategy]:
    """Rows of scores and labels; a mean is over the labels that count on all ranks.

    Rows with the ignored label are not spread evenly, so the ranks add up how many count.
    """
    scores, target = view.inputs[0], view.inputs[1]
    if len(scores.shape) < 2:
        return
    probabilities = target.shape == scores.shape
    reduction = view.integer(3, "reduction", _MEAN)
    number = max(dtype_size(scores.dtype), 4)
    inner = () if probabilities else (InnerCollective(CollectiveKind.ALL_REDUCE, number),)
    for dim, size in enumerate(scores.shape):
        if dim == 1:
            continue
        own = dim if probabilities or dim == 0 else dim - 1
        for shard in view.shards(dim, size):
            labels = replace(shard, dim=own)
            result = S(0 if dim == 0 else dim - 1, shard.blocks)
            if reduction == _NONE:
                yield view.strategy({0: shard, 1: labels}, result)
            elif reduction == _SUM:
                yield view.strategy({0: shard, 1: labels}, P)
            else:
                yield view.strategy({0: shard, 1: labels}, P, call=call, inner=inner)
