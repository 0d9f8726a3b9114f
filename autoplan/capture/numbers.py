"""Numbers that blocks of one class may have for themselves: rates of dropout, scales.

While blocks are compared, each such number is a `Bound`. `settled` makes those that all
blocks of a class share literals again. `Followed` finds the numbers of layers that were
left out of a short model in the log of the whole one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import Arg, BlockClass, BlockInstance, Bound, Op, is_bindable

__all__ = ["Followed", "binds_numbers", "settled"]

# No rule, cost or saved tensor of these depends on a number other than 0, 1 and -1.
_PACKETS = frozenset(
    {
        "_fused_rms_norm", "_scaled_dot_product_flash_attention_for_cpu", "add", "alpha_dropout",
        "bernoulli", "div", "dropout", "feature_alpha_dropout", "feature_dropout", "group_norm",
        "layer_norm", "mul", "native_dropout", "native_group_norm", "native_layer_norm",
        "rms_norm", "rsub", "scaled_dot_product_attention", "sub",
    }
)  # fmt: skip


def binds_numbers(packet: str) -> bool:
    """Whether the floats among the operator's arguments may be bound."""
    return packet.rstrip("_") in _PACKETS


def settled(
    classes: Sequence[BlockClass], instances: Sequence[BlockInstance]
) -> tuple[list[BlockClass], list[BlockInstance]]:
    """Classes that bind only numbers that differ, each sequence of them once."""
    new_classes, new_instances = list(classes), list(instances)
    for index, block in enumerate(classes):
        members = [k for k, instance in enumerate(instances) if instance.block_class == index]
        columns = list(zip(*(instances[k].numbers for k in members), strict=True))
        if not columns:
            continue
        kept: dict[tuple[float, ...], int] = {}
        new: list[Arg] = [
            column[0] if len(set(column)) == 1 else Bound(kept.setdefault(column, len(kept)))
            for column in columns
        ]
        ops = tuple(_rewritten(op, new) for op in block.ops)
        new_classes[index] = replace(block, ops=ops)
        rows = list(zip(*kept, strict=True)) or [()] * len(members)
        for k, row in zip(members, rows, strict=True):
            new_instances[k] = replace(instances[k], numbers=row)
    return new_classes, new_instances


def _rewritten(op: Op, new: Sequence[Arg]) -> Op:
    def changed(arg: Arg) -> Arg:
        return new[arg.index] if isinstance(arg, Bound) else arg

    if not any(isinstance(arg, Bound) for arg in (*op.args, *dict(op.kwargs).values())):
        return op
    return replace(
        op,
        args=tuple(map(changed, op.args)),
        kwargs=tuple((key, changed(arg)) for key, arg in op.kwargs),
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """Numbers of repeats: ``known`` as bound by blocks of some, ``logged`` those of all runs.

    A bound number is one that its layer computed with, so it is in the layer's log; where it
    stands there is found by its value in the layers that are known.
    """

    known: Mapping[int, Sequence[float]]
    logged: Mapping[int, Sequence[float]]

    def at(self, repeat: int) -> list[float] | None:
        """Numbers of another repeat, or None if the log leaves a doubt."""
        source = next(iter(self.known))
        wanted = self.logged[repeat]
        if all(self.logged[other] == wanted for other in self.known):
            same = all(numbers == self.known[source] for numbers in self.known.values())
            return list(self.known[source]) if same else None
        if any(len(self.logged[other]) != len(wanted) for other in self.known):
            return None
        found: list[float] = []
        for index in range(len(self.known[source])):
            values = {
                value
                for place, value in enumerate(wanted)
                if all(
                    self.logged[other][place] == numbers[index]
                    for other, numbers in self.known.items()
                )
            }
            if len(values) != 1 or not is_bindable(min(values)):
                return None
            found += values
        return found
