"""Seconds and bytes of the operators that every stage runs for itself."""

from __future__ import annotations

from dataclasses import replace

from autoplan.costs.compute import op_time
from autoplan.ir.graph import Graph, Op, Tensor
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.strategy import OpStrategy

__all__ = ["shared_costs"]


def shared_costs(graph: Graph, cluster: Cluster) -> tuple[float, int]:
    """Seconds and bytes of running every shared operator once."""
    known, key = _known(graph.shared_tensors), (graph.shared_ops, cluster)
    if key not in known:
        known[key] = _costs(graph, cluster)
    return known[key]


@by_identity(64)
def _known(tensors: tuple[Tensor, ...]) -> dict[tuple[tuple[Op, ...], Cluster], tuple[float, int]]:
    """Costs of operators on these tensors: variants of a graph have its very tensors."""
    del tensors
    return {}


def _costs(graph: Graph, cluster: Cluster) -> tuple[float, int]:
    block = graph.shared_block()
    eager = replace(cluster.accelerator, compiled=False)  # they run between compiled blocks
    seconds = sum(
        op_time(op, block, OpStrategy.whole(op), 1, eager).forward for op in graph.shared_ops
    )
    by_name = {tensor.name: tensor for tensor in graph.shared_tensors}
    produced = [by_name[name] for op in graph.shared_ops for name in op.outputs]
    size = sum(tensor.size for tensor in produced if tensor.base == tensor.name)
    return seconds, size
