"""The two ends of a language model: embedding and cross entropy.

Both may be sharded over the vocabulary. The runtime's ``vocab_embedding`` looks up the ids
of its rows and leaves zeros elsewhere, which gives addends; ``vocab_cross_entropy`` reduces
maximum, sum of exponentials and target logit, each one number a row, and never gathers the
logits.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op, dtype_size
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.strategy import InnerCollective, OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["cross_entropy", "embedding"]

_NONE, _SUM = 0, 2  # torch's numbers for reduction; 1 is the mean


@rule("aten.embedding.default")
def embedding(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``weight [v, h]``, ids -> ids' shape and ``h``: ids, columns, vocabulary."""
    ids = view.shape(1)
    yield view.strategy({0: S(1)}, S(len(ids)))
    if view.arg(3, "scale_grad_by_freq", False) is True:  # counts over all ids
        return
    for dim, size in enumerate(ids):
        for shard in view.shards(dim, size):
            yield view.strategy({1: shard}, shard)
    yield view.strategy({0: S(0)}, P, call="vocab_embedding")


@rule("aten.cross_entropy_loss.default")
def cross_entropy(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Logits ``[n, v]`` over the vocabulary, and over the rows where the result is exact.

    The mean over a slice of the rows is not the mean's addend: rows with the ignored label
    count differently on each rank.
    """
    logits, target = view.inputs[0], view.inputs[1]
    weighted = view.slot(2, "weight") is not None
    reduction = view.integer(3, "reduction", 1)
    smooth = view.arg(5, "label_smoothing", 0.0) not in (0, 0.0)
    if reduction == _NONE and len(logits.shape) == 2:
        yield view.strategy({0: S(0), 1: S(0)}, S(0))
    if reduction == _SUM and len(logits.shape) == 2:
        yield view.strategy({0: S(0), 1: S(0)}, P)
    classes = target.dtype == "int64"
    if len(logits.shape) == 2 and classes and not weighted and not smooth and reduction != _NONE:
        rows = logits.shape[0] * max(dtype_size(logits.dtype), 4)  # reduced in float32
        inner = (InnerCollective(CollectiveKind.ALL_REDUCE, rows),) * 3
        yield view.strategy({0: S(1)}, R, call="vocab_cross_entropy", inner=inner)
