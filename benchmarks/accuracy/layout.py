"""Megatron-LM's tensor parallelism as strategies of a captured model.

Projections alternate between columns and rows, embedding and loss are split by vocabulary, the
tensors between blocks are whole, or sharded along the sequence (Megatron's sequence
parallelism). What lies between follows its inputs: of an operator's legal strategies the one
that converts least.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.costs.block import NO_CALLS, HostCalls, block_cost
from autoplan.costs.resharding import conversion_time
from autoplan.costs.terms import op_term, required_states
from autoplan.ir.graph import BlockClass, Graph, Op, TensorKind
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group, spread
from autoplan.ir.placement import Partial, Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import strategies
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.frames import Frame
from benchmarks.accuracy.nemo import NO_EXTRAS, Extras, fp8_accelerator, with_extras

__all__ = ["megatron_point", "megatron_strategies", "tp_group"]

_PROJECTIONS = ("aten.linear.", "aten.addmm.", "aten.bmm.")
_VIEWS = ("aten.view.", "aten.reshape.", "aten._unsafe_view.")
_SEQUENCE = 1


def tp_group(tp: int, cluster: Cluster) -> Group:
    """Neighbouring ranks, as many in a node as divide ``tp``."""
    return spread(tp, 1, cluster.sizes, world=cluster.ranks)


def megatron_point(
    graph: Graph,
    tp: int,
    cluster: Cluster,
    *,
    sequence: bool,
    recompute: Recompute = Recompute.NONE,
    calls: HostCalls = NO_CALLS,
    scattered: bool = False,
    extras: Extras = NO_EXTRAS,
) -> ModelPoint:
    """Megatron's strategies of every class of blocks, and what they cost."""
    boundary: Placement = Shard(_SEQUENCE) if sequence and tp > 1 else Replicate()
    group = tp_group(tp, cluster)
    costs, ends = [], []
    for block in graph.classes:
        before, after = (
            tuple(boundary if block.tensor(name).shape else Replicate() for name in names)
            for names in (block.inputs, block.outputs)
        )
        where = cluster
        if extras.fp8 and any("scaled_dot_product" in op.target for op in block.ops):
            where = replace(cluster, accelerator=fp8_accelerator(cluster.accelerator))
        chosen = megatron_strategies(block, group, where, boundary)
        cost = block_cost(block, chosen, before, after, group, where, calls=calls)
        costs.append(with_extras(cost, block, chosen, group, where, extras))
        ends.append((before, after))
    return ModelPoint(
        frame=Frame(boundary),
        boundaries=tuple(ends),
        levels=(recompute,) * len(graph.classes),
        solutions=(),
        costs=tuple(costs),
        microbatch_bound=0.0,
        scattered=scattered,
    )


def megatron_strategies(
    block: BlockClass, group: Group, cluster: Cluster, boundary: Placement
) -> dict[str, OpStrategy]:
    """Strategy of each operator of a block, by name."""
    if group.ranks == 1:
        return {op.name: _whole(op) for op in block.ops}
    produced: dict[str, Placement] = {name: Replicate() for name in (*block.buffers, *block.shared)}
    produced.update(dict.fromkeys(block.inputs, boundary))
    chosen = {}
    for op in block.ops:
        offered = [
            s for s in strategies(op, block, group.ranks) if _is_megatron(op, block, s, produced)
        ]
        _, best = min(
            ((_seconds(op, block, s, produced, boundary, group, cluster), -i), i)
            for i, s in enumerate(offered)
        )
        chosen[op.name] = offered[best]
        produced.update(zip(op.outputs, offered[best].outputs, strict=True))
    return chosen


def _whole(op: Op) -> OpStrategy:
    return OpStrategy(
        inputs=(Replicate(),) * len(op.inputs), outputs=(Replicate(),) * len(op.outputs)
    )


def _is_megatron(
    op: Op, block: BlockClass, strategy: OpStrategy, produced: dict[str, Placement]
) -> bool:
    """Columns where the input has all features, rows where it is split by them."""
    if op.target.startswith("aten.embedding."):
        return isinstance(strategy.inputs[0], Shard) and strategy.inputs[0].dim == 0
    if not op.target.startswith(_PROJECTIONS):
        return True
    moving = [n for n in op.inputs if block.tensor(n).kind is not TensorKind.PARAMETER]
    if len(moving) > 1:
        return True  # scores and what they weigh
    (name,) = moving
    last = len(block.tensor(name).shape) - 1
    placement = produced[name]
    split = isinstance(placement, Shard) and placement.dim == last
    if split:
        return isinstance(strategy.outputs[0], Partial)
    return strategy.outputs[0] in (Shard(last), Shard(last, pad=True))


def _seconds(
    op: Op,
    block: BlockClass,
    strategy: OpStrategy,
    produced: dict[str, Placement],
    boundary: Placement,
    group: Group,
    cluster: Cluster,
) -> float:
    """Seconds of an operator and the conversions of its inputs; partial sums end as a boundary."""
    term = op_term(op, block, strategy, group, cluster)
    total = term.forward + term.backward + term.tp_forward + term.tp_backward
    for name, state in zip(op.inputs, required_states(op, block, strategy), strict=True):
        tensor = block.tensor(name)
        if tensor.kind is TensorKind.PARAMETER:
            continue
        source = produced[name]
        passed = state == source and op.target.startswith(_VIEWS)
        if isinstance(source, Partial) and state != boundary and not passed:
            return float("inf")
        resharding = conversion_time(tensor, source, state, group, cluster)
        if resharding is None:
            return float("inf")
        total += resharding.forward + resharding.backward
    return total
