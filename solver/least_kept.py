"""Bytes that a chain keeps from forward to backward whatever the strategies, before division."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.recompute import Recompute, is_kept

__all__ = ["least_kept"]

_Tensor = tuple[int, str]  # the block that makes it, and its base there


@dataclass(frozen=True, slots=True)
class _Names:
    """Bases of a block's tensors that are kept, of its outputs, and their bytes."""

    kept: dict[Recompute, frozenset[str]]
    outputs: tuple[str, ...]
    size: dict[str, int]


def least_kept(graph: Graph) -> dict[Recompute, int]:
    """Bytes of one microbatch by level.

    A tensor counts once, however many blocks keep it or hand it on to others.
    """
    classes = [_names(block) for block in graph.classes]
    held: dict[Recompute, dict[_Tensor, int]] = {level: {} for level in Recompute}
    entering: list[_Tensor] = []
    for position, instance in enumerate(graph.instances):
        names = classes[instance.block_class]
        inputs = graph.classes[instance.block_class].inputs
        # The first block reads nothing from a block.
        known = dict(zip(inputs, entering, strict=True)) if len(inputs) == len(entering) else {}
        for level, bases in names.kept.items():
            for base in bases:
                held[level][known.get(base, (position, base))] = names.size[base]
        entering = [
            known.get(base, (position, base))
            for index, base in enumerate(names.outputs)
            if index not in instance.unused
        ]
    return {level: sum(sizes.values()) for level, sizes in held.items()}


def _names(block: BlockClass) -> _Names:
    inputs = frozenset(block.inputs)
    saved = _made(block, (name for op in block.ops for name in op.saved))
    outputs = tuple(block.tensor(name).base for name in block.outputs)
    kept_ops = [op for op in block.ops if is_kept(op) and op.target != EXPERTS]
    products = _made(block, (name for op in kept_ops for name in op.outputs))
    # A checkpoint's frame hangs on what autograd saves.
    hangs = bool(block.parameters) or any(op.saved for op in block.ops)
    none = frozenset[str]()
    kept = {
        Recompute.NONE: saved,
        Recompute.SELECTIVE: inputs | (products - frozenset(outputs)) if hangs else none,
        Recompute.FULL: inputs if hangs else none,
    }
    bases = {*outputs, *(base for found in kept.values() for base in found)}
    return _Names(kept, outputs, {base: block.tensor(base).size for base in bases})


def _made(block: BlockClass, names: Iterable[str]) -> frozenset[str]:
    """Bases of tensors, without those that are there all step long."""
    resident = {*block.parameters, *block.buffers, *block.shared}
    return frozenset(block.tensor(name).base for name in names) - resident
