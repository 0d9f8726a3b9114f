"""Embedding and cross entropy over a vocabulary that is sharded on one axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .axis import Axis
from .collectives import _apply, _note, _size

__all__ = ["vocab_cross_entropy", "vocab_embedding"]


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


def _sum(x: Tensor, axis: Axis, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    if axis.size > 1:
        _note("all_reduce", _size(x))
        dist.all_reduce(x, op=op, group=axis.group)
    return x


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, reduction: int, ignore_index: int, axis: Axis
    ) -> Tensor:
        columns = logits.shape[1]
        local = target - axis.rank * columns
        ignored = target == ignore_index
        elsewhere = ignored | (local < 0) | (local >= columns)
        local = local.masked_fill(elsewhere, 0)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        largest = _sum(logits.amax(dim=1).to(dtype), axis, dist.ReduceOp.MAX)
        shifted = logits.to(dtype) - largest.unsqueeze(1)
        chosen = shifted.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0)
        total = _sum(shifted.exp_().sum(dim=1), axis).log_()
        losses = (total - _sum(chosen, axis)).masked_fill(ignored, 0)
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
        probability.mul_(scale.unsqueeze(1))
        here = -scale.masked_fill(elsewhere, 0)
        probability.scatter_add_(1, local.unsqueeze(1), here.unsqueeze(1))
        return probability.to(logits.dtype), None, None, None, None


def vocab_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    axis: Axis,
) -> Tensor:
    """Cross entropy of ``[N, V]`` logits of which each rank has its slice of the classes.

    Three all_reduces of N numbers (largest logit, sum of exponentials, logit of the target);
    the logits are never gathered. The loss, and the gradient that comes back, are whole.
    """
    if weight is not None or label_smoothing:
        raise ValueError("cross entropy over sharded classes has no weight and no label_smoothing")
    if logits.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        raise ValueError(
            "cross entropy over sharded classes needs logits [N, V] and integer targets [N], "
            f"not {tuple(logits.shape)} and {tuple(target.shape)} of {target.dtype}"
        )
    if reduction not in (0, 1, 2):
        raise ValueError(f"reduction {reduction} is none of 0 (none), 1 (mean), 2 (sum)")
    return _apply(_VocabCrossEntropy, logits, target, reduction, ignore_index, axis)
