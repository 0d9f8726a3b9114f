"""Seconds and bytes of the operators that every stage runs for itself."""

from __future__ import annotations

from autoplan.costs.compute import op_time
from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.hardware import Cluster
from autoplan.ir.placement import Replicate
from autoplan.ir.strategy import OpStrategy

__all__ = ["shared_costs"]


def shared_costs(graph: Graph, cluster: Cluster) -> tuple[float, int]:
    """Seconds and bytes of running every shared operator once."""
    block = BlockClass(
        name="shared",
        ops=graph.shared_ops,
        tensors=graph.shared_tensors,
        inputs=(),
        outputs=(),
        parameters=(),
        buffers=(),
        shared=(),
    )
    seconds = 0.0
    for op in graph.shared_ops:
        whole = OpStrategy(
            inputs=(Replicate(),) * len(op.inputs), outputs=(Replicate(),) * len(op.outputs)
        )
        seconds += op_time(op, block, whole, 1, cluster.accelerator).forward
    by_name = {tensor.name: tensor for tensor in graph.shared_tensors}
    produced = [by_name[name] for op in graph.shared_ops for name in op.outputs]
    size = sum(tensor.size for tensor in produced if tensor.base == tensor.name)
    return seconds, size
