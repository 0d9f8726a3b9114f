"""Priced strategies of a block's operators, and the seconds of changes between placements."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

from autoplan.costs.compute import OpTime
from autoplan.costs.resharding import Resharding
from autoplan.costs.terms import changed_time, op_term, required_states
from autoplan.ir.graph import BlockClass, Op, Tensor
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.offers import offers

__all__ = ["BlockChoices", "Choice", "block_choices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One strategy: state required by each input slot, and seconds by direction."""

    strategy: OpStrategy
    states: tuple[Placement, ...]
    forward: float
    backward: float
    again: Mapping[Recompute, float]


class BlockChoices:
    """What the operators of a block may choose on a group of ranks."""

    def __init__(self, block: BlockClass, group: Group, cluster: Cluster) -> None:
        self.block = block
        self.group = group
        self._cluster = cluster
        priced = offers(block, group.ranks, cluster.accelerator)
        self.of = tuple(
            tuple(_priced(op, block, strategy, time, group, cluster) for strategy, time in offered)
            for op, offered in zip(block.ops, priced, strict=True)
        )
        """Choices of each operator."""
        self._changes: dict[tuple[object, ...], Resharding | None] = {}

    def without(self, barred: Mapping[str, OpStrategy]) -> BlockChoices:
        """The choices without a strategy of some operators, by name, each of which has others."""
        left = copy(self)
        left.of = tuple(
            tuple(choice for choice in offered if choice.strategy != barred.get(op.name))
            for op, offered in zip(self.block.ops, self.of, strict=True)
        )
        return left

    @property
    def ranks(self) -> int:
        """Ranks that share the block."""
        return self.group.ranks

    def change(self, tensor: Tensor, made: Placement, wanted: Placement) -> Resharding | None:
        """Seconds of a change of placement; None when it is illegal."""
        # Fusion asks where a tensor stands; otherwise equal ones take equal times.
        name = tensor.name if self._cluster.accelerator.compiled else ""
        key = (tensor.shape, tensor.dtype, tensor.requires_grad, made, wanted, name)
        if key not in self._changes:
            self._changes[key] = changed_time(
                tensor.name, self.block, made, wanted, self.group, self._cluster
            )
        return self._changes[key]

    def is_copied(self, made: Placement, wanted: Placement) -> bool:
        """Whether a required state has storage of its own, being no plain slice."""
        if self.group.ranks == 1 or made == wanted:
            return False
        copied = isinstance(wanted, Shard) and (wanted.blocks > 1 or wanted.pad)
        return copied or not isinstance(made, Replicate)


@by_identity(2048)
def block_choices(block: BlockClass, group: Group, cluster: Cluster) -> BlockChoices:
    """Choices that don't depend on the question asked."""
    return BlockChoices(block, group, cluster)


def _priced(
    op: Op, block: BlockClass, strategy: OpStrategy, time: OpTime, group: Group, cluster: Cluster
) -> Choice:
    term = op_term(op, block, strategy, group, cluster, time=time)
    return Choice(
        strategy=strategy,
        states=required_states(op, block, strategy),
        forward=term.forward + term.tp_forward,
        backward=term.backward + term.tp_backward,
        again={
            Recompute.NONE: 0.0,
            Recompute.SELECTIVE: term.again + term.tp_again,
            Recompute.FULL: term.forward + term.tp_forward,
        },
    )
