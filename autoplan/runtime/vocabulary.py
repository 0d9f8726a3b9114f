"""Embedding and cross entropy of which each rank has some classes or some rows.

A vocabulary that does not divide is padded: the last rank's surplus rows or columns take no
part here, whatever they hold, and get a gradient of exactly zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis
from .collectives import _apply, pad_dim, reduce_in_place

__all__ = ["row_cross_entropy", "row_nll_loss", "vocab_cross_entropy", "vocab_embedding"]


def vocab_embedding(
    weight: Tensor,
    ids: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    axis: Axis,
) -> Tensor:
    """Addend of the embedding of ``ids``: zero where another rank has the row.

    ``weight`` holds this rank's rows; the ranks' results sum to the embedding.
    """
    if scale_grad_by_freq or sparse:
        raise ValueError("a sharded embedding has neither scale_grad_by_freq nor sparse gradients")
    rows = weight.shape[0]
    first = axis.rank * rows
    local = ids - first
    elsewhere = (local < 0) | (local >= rows)
    padding = padding_idx - first
    values = F.embedding(
        local.masked_fill(elsewhere, 0),
        weight,
        padding_idx=padding if padding_idx >= 0 and 0 <= padding < rows else None,
    )
    return values.masked_fill(elsewhere.unsqueeze(-1), 0)


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        reduction: int,
        ignore_index: int,
        columns: int,
        classes: int,
        spread: float,
        axis: Axis,
    ) -> Tensor:
        """``spread`` is the part of the label that each class gets by smoothing."""
        local = target - axis.rank * logits.shape[1]
        ctx.columns = logits.shape[1]
        logits = logits.narrow(1, 0, columns)
        ignored = target == ignore_index
        elsewhere = ignored | (local < 0) | (local >= columns)
        local = local.masked_fill(elsewhere, 0)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        largest = reduce_in_place(logits.amax(dim=1).to(dtype), axis, dist.ReduceOp.MAX)
        shifted = logits.to(dtype) - largest.unsqueeze(1)
        chosen = shifted.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0)
        ctx.spread, ctx.kept = spread, 1.0
        if spread:
            ctx.kept = 1.0 - spread * classes
            chosen = ctx.kept * chosen + spread * shifted.sum(dim=1)
        total = reduce_in_place(shifted.exp_().sum(dim=1), axis).log_()
        losses = (total - reduce_in_place(chosen, axis)).masked_fill(ignored, 0)
        count = (~ignored).sum() if reduction == 1 else None
        ctx.save_for_backward(logits, largest + total, local, elsewhere, ignored, count)
        ctx.reduction = reduction
        if reduction == 0:
            return losses.to(logits.dtype)
        loss = losses.sum()
        return (loss if count is None else loss / count).to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, normaliser, local, elsewhere, ignored, count = ctx.saved_tensors
        scale = grad.to(normaliser.dtype).expand(logits.shape[0])
        scale = scale if count is None else scale / count
        scale = scale.masked_fill(ignored, 0)
        probability = (logits.to(normaliser.dtype) - normaliser.unsqueeze(1)).exp_()
        if ctx.spread:
            probability.sub_(ctx.spread)
        probability.mul_(scale.unsqueeze(1))
        here = -ctx.kept * scale.masked_fill(elsewhere, 0)
        probability.scatter_add_(1, local.unsqueeze(1), here.unsqueeze(1))
        gradient = pad_dim(probability.to(logits.dtype), 1, ctx.columns)
        return gradient, None, None, None, None, None, None, None


def vocab_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    classes: int | None = None,
    axis: Axis,
) -> Tensor:
    """Cross entropy of ``[N, V]`` logits of which each rank has its slice of the classes.

    Three all_reduces of N numbers (largest logit, sum of exponentials, logit of the target);
    the logits are never gathered. The loss, and the gradient that comes back, are whole.
    ``classes`` is V where the slices hold padding besides.
    """
    if weight is not None:
        raise ValueError("cross entropy over sharded classes has no weight")
    if logits.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        raise ValueError(
            "cross entropy over sharded classes needs logits [N, V] and integer targets [N], "
            f"not {tuple(logits.shape)} and {tuple(target.shape)} of {target.dtype}"
        )
    if reduction not in (0, 1, 2):
        raise ValueError(f"reduction {reduction} is none of 0 (none), 1 (mean), 2 (sum)")
    held = logits.shape[1]
    whole = held * axis.size if classes is None else classes
    columns = min(held, whole - axis.rank * held)
    if columns <= 0 or whole > held * axis.size:
        raise ValueError(f"{whole} classes on {axis.size} ranks, but each has {held} columns")
    spread = label_smoothing / whole
    return _apply(
        _VocabCrossEntropy, logits, target, reduction, ignore_index, columns, whole, spread, axis
    )


def row_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    axis: Axis,
) -> Tensor:
    """Addend of the mean cross entropy of logits of which each rank has some rows.

    The ranks agree on what they divide by, the labels that count: an all_reduce of one number,
    which has no gradient.
    """
    _check_mean(reduction)
    losses = F.cross_entropy(
        logits,
        target,
        weight,
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    if target.is_floating_point():  # probabilities: every row counts as one
        return losses / (logits.numel() // logits.shape[1] * axis.size)
    counted = _weight_of_labels(logits, target, weight, ignore_index, axis)
    return (losses / counted).to(losses.dtype)


def row_nll_loss(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    *,
    axis: Axis,
) -> Tensor:
    """Addend of the mean negative log likelihood; see `row_cross_entropy`."""
    _check_mean(reduction)
    losses = F.nll_loss(
        log_probabilities, target, weight, ignore_index=ignore_index, reduction="sum"
    )
    counted = _weight_of_labels(log_probabilities, target, weight, ignore_index, axis)
    return (losses / counted).to(losses.dtype)


def _check_mean(reduction: int) -> None:
    if reduction != 1:
        raise ValueError(f"reduction {reduction} over sharded rows needs no call; 1 is the mean")


@torch.no_grad()
def _weight_of_labels(
    scores: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, axis: Axis
) -> Tensor:
    """Sum of the class weights (1 without) of all ranks' labels that are not ignored."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    counted = target != ignore_index
    if weight is None:
        return reduce_in_place(counted.sum().to(dtype), axis)
    weights = weight.to(dtype)[target.masked_fill(~counted, 0)]
    return reduce_in_place(weights.masked_fill(~counted, 0).sum(), axis)
