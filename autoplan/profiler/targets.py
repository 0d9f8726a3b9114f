"""Which operators to measure: every local form that the search space of a model needs.

A target is one operator under one strategy, with the shapes that a rank has. Targets with the
same signature do the same work and are measured once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autoplan.costs.compute import is_view
from autoplan.costs.signature import operator_signature
from autoplan.ir.experts import EXPERTS, experts_region
from autoplan.ir.graph import BlockClass, Graph, Op, Tensor, aten_name
from autoplan.ir.placement import shard_shape
from autoplan.ir.record import op_to_record
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import library_of, localize, strategies

__all__ = ["Operand", "Target", "find_targets", "targets_to_json"]

# Whether these copy depends on strides, which a graph doesn't tell.
_MAYBE_COPIES = ("reshape", "contiguous", "clone", "_unsafe_view")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor to make: integers lie in ``[0, below)``, from 0 upwards where they ``ascend``.

    ``held`` is one that the block holds, a parameter or buffer: nothing has just computed it.
    """

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    below: int
    ascend: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An operator with local literals, as one rank of ``ranks`` runs it.

    ``operands`` are its input slots; slots that read one tensor have one ``tensors`` number.
    ``library`` is the module that registers it with torch, if that isn't torch's own.
    """

    signature: str
    op: Op
    call: str
    ranks: int
    operands: tuple[Operand, ...]
    tensors: tuple[int, ...]
    library: str


def find_targets(graphs: Iterable[Graph], degrees: Iterable[int]) -> tuple[Target, ...]:
    """Targets of the blocks of ``graphs`` (one a microbatch size) on tp axes of those degrees."""
    found: dict[str, Target] = {}
    wanted = sorted(set(degrees))
    for graph in graphs:
        for target in _targets(graph.shared_block(), 1, whole=True):
            found.setdefault(target.signature, target)
        for ranks in wanted:
            for block in graph.classes:
                for target in _targets(block, ranks):
                    found.setdefault(target.signature, target)
    return tuple(found.values())


def _targets(block: BlockClass, ranks: int, *, whole: bool = False) -> Iterator[Target]:
    for op in block.ops:
        if aten_name(op.target) in _MAYBE_COPIES and not is_view(op, block):
            continue
        offered: Iterable[OpStrategy] = strategies(op, block, ranks)
        if whole:
            offered = (OpStrategy.whole(op),)
        for strategy in offered:
            yield _target(op, block, strategy, ranks)


def _target(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> Target:
    inputs = [block.tensor(name) for name in op.inputs]
    shapes = [shard_shape(t.shape, p, ranks) for t, p in zip(inputs, strategy.inputs, strict=True)]
    first: dict[str, int] = {}
    for name in op.inputs:
        first.setdefault(name, len(first))
    # A function of the runtime takes indices of the whole tensor.
    indexed = [t.shape for t in inputs] if strategy.call else shapes
    below = _below(op, block, inputs, indexed)
    held = {*block.parameters, *block.buffers}
    operands = [
        Operand(
            shape=shape,
            dtype=t.dtype,
            requires_grad=t.requires_grad,
            below=below,
            held=t.name in held,
        )
        for t, shape in zip(inputs, shapes, strict=True)
    ]
    if "embedding_bag" in op.target:  # the third is where each bag begins among the second
        bags = replace(operands[2], below=max(1, math.prod(shapes[1])), ascend=True)
        operands[2] = bags
    return Target(
        signature=operator_signature(op, block, strategy, ranks),
        op=localize(op, block, strategy, ranks),
        call=strategy.call,
        ranks=ranks,
        operands=tuple(operands),
        tensors=tuple(first[name] for name in op.inputs),
        library=library_of(op.target),
    )


def _below(op: Op, block: BlockClass, inputs: list[Tensor], shapes: list[tuple[int, ...]]) -> int:
    """What indices must lie below, whatever they index.

    Rows of a table, classes of a loss (its second dim), experts; else the smallest of all dims.
    """
    if op.target == EXPERTS:
        return experts_region(op, block.tensor, name=op.name).num_experts
    floating = [s for s, t in zip(shapes, inputs, strict=True) if "float" in t.dtype and s]
    if not floating:
        return 2
    name = aten_name(op.target)
    if "embedding" in name:
        return floating[0][0]
    if "nll_loss" in name or "cross_entropy" in name:
        return floating[0][1 if len(floating[0]) > 1 else 0]
    return max(1, min(min(shape) for shape in floating))


def targets_to_json(targets: Iterable[Target]) -> str:
    """Text that `autoplan.profiler.worker` reads."""
    return json.dumps(
        [
            {
                "signature": target.signature,
                "op": op_to_record(target.op, None).model_dump(mode="json"),
                "call": target.call,
                "ranks": target.ranks,
                "operands": [
                    [list(o.shape), o.dtype, o.requires_grad, o.below, o.ascend, o.held]
                    for o in target.operands
                ],
                "tensors": target.tensors,
                "library": target.library,
            }
            for target in targets
        ]
    )
