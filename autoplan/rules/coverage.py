"""Which operators of a model the rules can shard, and what the others cost: `rule_coverage`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.ir.graph import BlockClass, Graph, Op
from autoplan.ir.placement import Replicate
from autoplan.rules.registry import has_rule, stated_strategies, strategies

__all__ = ["OpCoverage", "replicated_notes", "rule_coverage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCoverage:
    """The calls of one operator in a model, and those that can only be replicated.

    ``strategies`` is the least and the greatest number at one call. ``bytes`` counts each
    tensor read and each new one written; the result of a view is not new. ``reason`` says why calls
    are replicated, ``""`` when none is.
    """

    target: str
    calls: int
    strategies: tuple[int, int]
    flop: int
    bytes: int
    replicated_calls: int = 0
    replicated_flop: int = 0
    replicated_bytes: int = 0
    reason: str = ""


def rule_coverage(graph: Graph, ranks: int) -> tuple[OpCoverage, ...]:
    """One record for each operator of the graph's blocks on ``ranks``, most FLOP first.

    Shared operators are left out: every rank runs them whole by definition.
    """
    copies = Counter(instance.block_class for instance in graph.instances)
    calls: dict[str, list[OpCoverage]] = {}
    for index, block in enumerate(graph.classes):
        for op in block.ops:
            calls.setdefault(op.target, []).append(_one(op, block, ranks, copies[index]))
    found = [_sum(target, records) for target, records in calls.items()]
    return tuple(sorted(found, key=lambda c: (-c.flop, -c.bytes, c.target)))


def _one(op: Op, block: BlockClass, ranks: int, copies: int) -> OpCoverage:
    count = len(strategies(op, block, ranks))
    flop = (op.flop + op.flop_backward) * copies
    tensors = [block.tensor(name) for name in op.outputs]
    written = sum(tensor.size for tensor in tensors if tensor.base == tensor.name)
    moved = written and written + sum(block.tensor(name).size for name in op.inputs)
    size = moved * copies
    whole = count == 1 and ranks > 1
    return OpCoverage(
        target=op.target,
        calls=copies,
        strategies=(count, count),
        flop=flop,
        bytes=size,
        replicated_calls=copies if whole else 0,
        replicated_flop=flop if whole else 0,
        replicated_bytes=size if whole else 0,
        reason=_reason(op, block, ranks) if whole else "",
    )


def _reason(op: Op, block: BlockClass, ranks: int) -> str:
    if not has_rule(op.target):
        return "no rule"
    stated = stated_strategies(op, block, ranks)
    if any(not isinstance(p, Replicate) for s in stated for p in (*s.inputs, *s.outputs)):
        return f"no size divides by {ranks}"
    return "needs whole tensors"


def _sum(target: str, records: list[OpCoverage]) -> OpCoverage:
    return OpCoverage(
        target=target,
        calls=sum(r.calls for r in records),
        strategies=(
            min(r.strategies[0] for r in records),
            max(r.strategies[1] for r in records),
        ),
        flop=sum(r.flop for r in records),
        bytes=sum(r.bytes for r in records),
        replicated_calls=sum(r.replicated_calls for r in records),
        replicated_flop=sum(r.replicated_flop for r in records),
        replicated_bytes=sum(r.replicated_bytes for r in records),
        reason="; ".join(dict.fromkeys(r.reason for r in records if r.reason)),
    )


def replicated_notes(coverage: Iterable[OpCoverage]) -> tuple[str, ...]:
    """A sentence for each operator that is replicated because no rule knows it."""
    records = tuple(coverage)
    total = sum(record.flop for record in records) or 1
    return tuple(
        f"replicated for want of a rule: {r.target} ({r.replicated_calls} calls, "
        f"{r.replicated_flop / total:.1%} of FLOP)"
        for r in records
        if not has_rule(r.target)
    )
