"""Products of tensors by the letters of their dims, as ``einsum`` writes them.

A letter of the output may be sharded in every tensor that has it. A letter that is summed may
be sharded in its operands, and the ranks' results are addends. An operand that broadcasts a
letter (size 1) stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoplan.ir.graph import Op
from autoplan.ir.placement import Placement, Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, rule

__all__ = ["contraction", "einsum"]

Letters = tuple[str, ...]


def contraction(view: OpView, terms: Sequence[Letters], result: Letters) -> Iterator[OpStrategy]:
    """Strategies of a product of the first ``len(terms)`` slots; other slots stay whole.

    A letter that an operand has twice (a diagonal) is not sharded.
    """
    for letter in dict.fromkeys(letter for term in (result, *terms) for letter in term):
        if any(term.count(letter) > 1 for term in (*terms, result)):
            continue
        at = [
            (slot, term.index(letter))
            for slot, term in enumerate(terms)
            if letter in term and view.shape(slot)[term.index(letter)] > 1
        ]
        sizes = {view.shape(slot)[dim] for slot, dim in at}
        if len(sizes) != 1:
            continue
        size = sizes.pop()
        for padded in view.padded(0, size) if letter in result else ():
            held: dict[int | None, Placement] = {s: replace(padded, dim=dim) for s, dim in at}
            yield view.strategy(held, replace(padded, dim=result.index(letter)))
        for blocks in view.blocks(size):
            inputs: dict[int | None, Placement] = {slot: Shard(dim, blocks) for slot, dim in at}
            placed = Shard(result.index(letter), blocks) if letter in result else P
            yield view.strategy(inputs, placed)


def _equation(text: str, ranks: Sequence[int]) -> tuple[list[Letters], Letters] | None:
    """Letters of the operands and of the result; ``...`` becomes letters of its own."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    spread = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)
         if "..." in term), default=0,
    )  # fmt: skip
    named = [_spread(term, rank - len(term.replace("...", "")), spread)
             for term, rank in zip(terms, ranks, strict=True)]  # fmt: skip
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    return named, _spread(right, spread, spread)


def _spread(term: str, own: int, most: int) -> Letters:
    before, dots, after = term.partition("...")
    middle = [f".{index}" for index in range(most - own, most)] if dots else []
    return (*before, *middle, *after)


@rule("aten.einsum.default")
def einsum(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any equation: batch and free letters are kept, summed ones give addends."""
    equation = view.arg(0, "equation")
    found = _equation(str(equation), [len(tensor.shape) for tensor in view.inputs])
    if found is not None:
        yield from contraction(view, *found)


_FIXED = {
    "aten.mv.default": "ij,j->i",
    "aten.dot.default": "i,i->",
    "aten.vdot.default": "i,i->",
    "aten.outer.default": "i,j->ij",
    "aten.ger.default": "i,j->ij",
    "aten.bilinear.default": "...i,...j,oij->...o",
}


@rule("aten.mv.default", "aten.dot.default", "aten.vdot.default", "aten.outer.default",
      "aten.ger.default", "aten.bilinear.default")  # fmt: skip
def fixed(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Products of vectors, and the bilinear form; a bias forbids addends."""
    equation = _FIXED[op.target]
    count = equation.count(",") + 1
    found = _equation(equation, [len(tensor.shape) for tensor in view.inputs[:count]])
    if found is None:
        return
    last = len(view.output.shape) - 1
    for strategy in contraction(view, *found):
        placed: dict[int | None, Placement] = dict(enumerate(strategy.inputs))
        if len(view.inputs) == count:
            yield strategy
        elif strategy.outputs[0] != P:  # the bias is along the last dim of the result
            output = strategy.outputs[0]
            along = isinstance(output, Shard) and output.dim == last
            bias = Shard(0, output.blocks) if along and isinstance(output, Shard) else R
            yield view.strategy({**placed, count: bias}, output)


@rule("aten.mm.default", "aten.bmm.default", "aten.matmul.default")
def product(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """``[..., m, k] @ [..., k, n]``; batch dims broadcast, vectors have no row or column."""
    ranks = [len(view.shape(slot)) for slot in (0, 1)]
    left = "k" if ranks[0] == 1 else "...mk"
    right = "k" if ranks[1] == 1 else "...kn"
    result = ("..." if max(ranks) > 1 else "") + "m" * (ranks[0] > 1) + "n" * (ranks[1] > 1)
    found = _equation(f"{left},{right}->{result}", ranks)
    if found is not None:
        yield from contraction(view, *found)
