"""Why an operator can't be sharded in some way: sizes that do not divide, and what is padded."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import BlockClass, Op, Tensor
from autoplan.ir.placement import Shard, padded_shape
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.attention import why_not
from autoplan.rules.registry import has_rule, stated_strategies, strategies

__all__ = ["reasons"]


def reasons(op: Op, block: BlockClass, ranks: int) -> tuple[str, ...]:
    """A sentence for each dim that the operator's rule would shard but ``ranks`` don't divide.

    Empty where everything that the rule states is possible.
    """
    if not has_rule(op.target):
        return (f"no rule knows {op.target}",)
    found: dict[tuple[str, int], str] = {}
    legal = {
        (name, shard.dim, shard.pad)
        for strategy in strategies(op, block, ranks)
        for name, shard in _shards(op, strategy)
    }
    for strategy in stated_strategies(op, block, ranks):
        for name, shard in _shards(op, strategy):
            tensor = block.tensor(name)
            if (name, shard.dim, False) in legal or shard.dim >= len(tensor.shape):
                continue
            if tensor.shape[shard.dim] % ranks or (name, shard.dim, True) in legal:
                padded = (name, shard.dim, True) in legal
                found.setdefault((name, shard.dim), _sentence(tensor, shard.dim, ranks, padded))
    return (*dict.fromkeys(found.values()), *why_not(op, block, ranks))


def _shards(op: Op, strategy: OpStrategy) -> Iterator[tuple[str, Shard]]:
    placements = (*strategy.inputs, *strategy.outputs)
    for name, placement in zip((*op.inputs, *op.outputs), placements, strict=True):
        if isinstance(placement, Shard):
            yield name, placement


def _sentence(tensor: Tensor, dim: int, ranks: int, padded: bool) -> str:
    size = tensor.shape[dim]
    what = f"dim {dim} of {tensor.name} is {size}"
    if size < ranks:
        return f"{what}, too few for {ranks} ranks"
    what += f", which {ranks} ranks don't divide"
    if padded:
        return f"{what}: padded to {padded_shape(tensor.shape, Shard(dim, pad=True), ranks)[dim]}"
    return what
