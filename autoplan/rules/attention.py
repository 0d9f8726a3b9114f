"""Scaled dot product attention: batch, heads, or query rows.

Grouped queries shard with their key heads where these divide; where there are fewer, keys
and values stay whole and ``grouped_attention`` takes the groups that a rank needs. Causal
rows are ``row_attention``: a rank's rows see the keys up to their own place. With dropout
the call is ``sharded_attention`` (a generator of random numbers for each rank) or
``replicated_attention`` (one for all). Keys aren't sharded: each row's softmax spans them.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.attention import ATTENTION_TARGET, attention_argument, attention_regions
from autoplan.ir.graph import BlockClass, Op
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, R, S, rule

__all__ = ["attention", "why_not"]


@rule(ATTENTION_TARGET)
def attention(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``query [..., s, d]``, ``key`` and ``value [..., t, d]``, mask like ``[..., s, t]``."""
    query, key, value = view.shape(0), view.shape(1), view.shape(2)
    dropout = attention_argument(op, "dropout_p", 0.0) not in (0, 0.0)
    causal = attention_argument(op, "is_causal", False) is True
    mask = view.slot(3, "attn_mask")
    if dropout:
        yield view.strategy({}, R, call="replicated_attention")
    local = "sharded_attention" if dropout else ""
    leading = len(query) - 2
    if len(key) != len(query) or len(value) != len(query):
        return
    for dim in range(leading):
        inputs: dict[int | None, Placement] = {0: S(dim)}
        inputs[mask] = _mask(view, mask, dim, query[dim])
        call = local
        if key[dim] == value[dim] == 1 < query[dim]:
            pass  # one key head, or one sample of keys, for all
        elif key[dim] % view.ranks == 0 and value[dim] % view.ranks == 0:
            inputs[1] = inputs[2] = S(dim)
        elif dim == leading - 1 and key[dim] == value[dim] < query[dim]:
            call = "grouped_attention"
        else:
            continue
        yield view.strategy(inputs, S(dim), call=call)
    rows = _mask(view, mask, leading, query[leading])
    call = "row_attention" if causal else local
    yield view.strategy({0: S(leading), mask: rows}, S(leading), call=call)


def why_not(op: Op, block: BlockClass, ranks: int) -> tuple[str, ...]:
    """Why the attention that ``op`` is part of can't be cut along a dim; empty if it can."""
    region = next((r for r in attention_regions(block) if op.name in r.ops), None)
    if region is None:
        return ()
    sizes = (
        (region.heads, "heads don't divide into"),
        (region.queries, "query rows don't divide into"),
        (region.batch, "samples don't divide into"),
    )
    return tuple(f"{size} {text} {ranks}" for size, text in sizes if size % ranks)


def _mask(view: OpView, slot: int | None, dim: int, size: int) -> Placement:
    if slot is None:
        return R
    shape = view.shape(slot)
    own = dim - (len(view.output.shape) - len(shape))
    return S(own) if own >= 0 and shape[own] == size and size > 1 else R
