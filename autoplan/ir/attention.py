"""Attention as a region: what context parallelism and reports need to know of it.

A view of a block, not a rewrite. `attention_regions` finds fused operators, and attention
written out as two products around a softmax (``fused`` is false then).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.ir.graph import Arg, BlockClass, Bound, Op, Ref, aten_name

__all__ = ["ATTENTION_TARGET", "AttentionRegion", "attention_argument", "attention_regions"]

ATTENTION_TARGET = "aten.scaled_dot_product_attention.default"
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_PRODUCTS = {"matmul", "bmm", "baddbmm"}
_SOFTMAX = {"softmax", "_softmax"}
# Between the first product and the softmax, and between that and the second product.
_BEFORE = {
    "add", "baddbmm", "cat", "clamp", "clone", "contiguous", "div", "expand", "masked_fill",
    "max", "maximum", "mul", "reshape", "roll", "slice", "sub", "tanh", "to", "type_as",
    "unsqueeze", "view", "where",
}  # fmt: skip
_AFTER = {
    "clone", "contiguous", "dropout", "expand", "masked_fill", "mul", "reshape", "slice", "split",
    "to", "type_as", "view", "where",
}  # fmt: skip
_VIEWS = {"clone", "contiguous", "permute", "reshape", "slice", "to", "transpose", "view"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRegion:
    """One attention of a block; sizes are whole.

    ``op`` names the operator that gives the result, ``ops`` all of the region. ``mask`` is
    ``none``, ``causal``, ``sliding``, ``local``, ``chunked``, ``block``, ``prefix``, ``bias``
    (numbers are added) or ``explicit``; ``window`` is its number (0: it has none). A mask
    in attention that is written out isn't looked into: it is ``explicit`` if there is one.
    ``dropout`` is NaN where each block has its own.
    """

    op: str
    ops: tuple[str, ...]
    fused: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    mask: str
    window: int
    dropout: float
    causal: bool

    def __str__(self) -> str:
        mask = f"{self.mask}({self.window})" if self.window else self.mask
        heads = f"{self.heads}" + ("" if self.kv_heads == self.heads else f"/{self.kv_heads}")
        kind = "fused" if self.fused else "eager"
        return f"{kind} {heads} heads x {self.queries} x {self.keys}, {mask}"


def attention_argument(op: Op, name: str, default: Arg = None) -> Arg:
    """Argument of a fused attention operator by its name."""
    index = _NAMES.index(name) if name in _NAMES else len(op.args)
    if index < len(op.args):
        return op.args[index]
    return dict(op.kwargs).get(name, default)


def attention_regions(block: BlockClass) -> tuple[AttentionRegion, ...]:
    """Attention of a block in program order."""
    return tuple(_regions(block))


def _regions(block: BlockClass) -> Iterator[AttentionRegion]:
    makers = {name: op for op in block.ops for name in op.outputs}
    readers: dict[str, list[Op]] = {}
    for op in block.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    for op in block.ops:
        if op.target == ATTENTION_TARGET:
            yield _fused(op, block, makers)
        elif _packet(op) in _SOFTMAX:
            found = _written_out(op, block, makers, readers)
            if found is not None:
                yield found


def _packet(op: Op) -> str:
    return aten_name(op.target)


def _fused(op: Op, block: BlockClass, makers: dict[str, Op]) -> AttentionRegion:
    query, key, value = (block.tensor(name).shape for name in op.inputs[:3])
    kind, window = _kind(op)
    dropout = attention_argument(op, "dropout_p", 0.0)
    kv_heads = key[-3] if len(key) > 3 else 1
    return AttentionRegion(
        op=op.name,
        ops=(op.name,),
        fused=True,
        batch=math.prod(query[:-3]) if len(query) > 3 else query[0],
        heads=query[-3] if len(query) > 3 else 1,
        kv_heads=_before_repeat(op.inputs[1], kv_heads, block, makers),
        queries=query[-2],
        keys=key[-2],
        head_dim=query[-1],
        value_dim=value[-1],
        mask=kind,
        window=window,
        dropout=_probability(dropout),
        causal=kind in {"causal", "sliding", "chunked"},
    )


def _probability(dropout: Arg) -> float:
    if isinstance(dropout, Bound):
        return math.nan
    return float(dropout) if isinstance(dropout, int | float) else 0.0


def _kind(op: Op) -> tuple[str, int]:
    if attention_argument(op, "attn_mask") is None:
        return ("causal" if attention_argument(op, "is_causal") is True else "none"), 0
    name, _, number = (op.mask or "explicit").rstrip(")").partition("(")
    return name, int(number or 0)


def _before_repeat(name: str, heads: int, block: BlockClass, makers: dict[str, Op]) -> int:
    """Key heads before each was repeated for its group of query heads."""
    while name in makers and _packet(makers[name]) in {*_VIEWS, "expand"}:
        op = makers[name]
        before, after = block.tensor(op.inputs[0]).shape, block.tensor(name).shape
        if _packet(op) == "expand" and len(after) == 5 and before[2] == 1 != after[2]:
            return heads // after[2]
        name = op.inputs[0]
    return heads


def _written_out(
    softmax: Op, block: BlockClass, makers: dict[str, Op], readers: dict[str, list[Op]]
) -> AttentionRegion | None:
    before = _scores(softmax.inputs[0], makers, [])
    after = _result(softmax.outputs[0], readers, [])
    if before is None or after is None:
        return None
    scores, product = before[-1], after[-1]
    operands = scores.inputs[1:] if _packet(scores) == "baddbmm" else scores.inputs
    query, value = block.tensor(operands[0]).shape, block.tensor(product.inputs[1]).shape
    weights = block.tensor(product.inputs[0]).shape
    chain = [block.tensor(name).shape for op in (*before, softmax) for name in op.outputs]
    split = next((shape for shape in chain if len(shape) == 4), (1, *weights[-3:]))
    heads = split[1]
    dropout = next((op.args[1] for op in after if _packet(op) == "dropout"), 0.0)
    masked = any(_packet(op) in {"add", "baddbmm", "masked_fill", "where"} for op in before)
    return AttentionRegion(
        op=product.name,
        ops=tuple(op.name for op in (*reversed(before), softmax, *after)),
        fused=False,
        batch=math.prod(weights[:-2]) // heads,
        heads=heads,
        kv_heads=_before_repeat(operands[1], heads, block, makers),
        queries=weights[-2],
        keys=weights[-1],
        head_dim=query[-1],
        value_dim=value[-1],
        mask="explicit" if masked else "none",
        window=0,
        dropout=_probability(dropout),
        causal=False,
    )


def _scores(name: str, makers: dict[str, Op], passed: list[Op]) -> list[Op] | None:
    """Operators from the softmax back to the product of queries and keys."""
    op = makers.get(name)
    if op is None:
        return None
    if _packet(op) in _PRODUCTS:
        return [*passed, op]
    if _packet(op) not in _BEFORE:
        return None
    for arg in op.inputs:
        found = _scores(arg, makers, [*passed, op])
        if found is not None:
            return found
    return None


def _result(name: str, readers: dict[str, list[Op]], passed: list[Op]) -> list[Op] | None:
    """Operators from the softmax on to the product of weights and values."""
    for op in readers.get(name, []):
        if _packet(op) in {"matmul", "bmm"} and op.args[0] == Ref(name):
            return [*passed, op]
        if _packet(op) in _AFTER:
            for output in op.outputs:
                found = _result(output, readers, [*passed, op])
                if found is not None:
                    return found
    return None
