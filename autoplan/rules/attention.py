"""Scaled dot product attention: batch, heads, or query positions.

With grouped queries each rank needs whole groups, so the key and value heads must divide
too. With dropout the call is ``sharded_attention`` (a generator of random numbers for each
rank) or ``replicated_attention`` (one for all).
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, R, S, rule

__all__ = ["attention"]


@rule("aten.scaled_dot_product_attention.default")
def attention(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``query [..., s, d]``, ``key`` and ``value [..., t, d]``, mask like ``[..., s, t]``."""
    query, key = view.shape(0), view.shape(1)
    dropout = view.arg(4, "dropout_p", 0.0) not in (0, 0.0)
    causal = view.arg(5, "is_causal", False) is True
    mask = view.slot(3, "attn_mask")
    if dropout:
        yield view.strategy({}, R, call="replicated_attention")
    call = "sharded_attention" if dropout else ""
    leading = len(query) - 2
    if len(key) != len(query) or len(view.shape(2)) != len(query):
        return
    for dim in range(leading):
        if key[dim] % view.ranks or view.shape(2)[dim] % view.ranks:
            continue
        inputs: dict[int | None, Placement] = {slot: S(dim) for slot in range(3)}
        inputs[mask] = _mask(view, mask, dim, query[dim])
        yield view.strategy(inputs, S(dim), call=call)
    if not causal:
        rows = _mask(view, mask, leading, query[leading])
        yield view.strategy({0: S(leading), mask: rows}, S(leading), call=call)


def _mask(view: OpView, slot: int | None, dim: int, size: int) -> Placement:
    if slot is None:
        return R
    shape = view.shape(slot)
    own = dim - (len(view.output.shape) - len(shape))
    return S(own) if own >= 0 and shape[own] == size and size > 1 else R
