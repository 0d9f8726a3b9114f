"""Seconds of the collectives that data parallelism adds to a block or a stage.

ZeRO levels: 0 keeps everything on each rank (all_reduce of gradients); 1 shards the
optimizer state (all_reduce, then an all_gather of the updated parameters); 2 and 3 shard
parameters, gradients and optimizer state with FSDP2, where 2 keeps the gathered parameters
from forward to backward and 3 gathers again. Source: ZeRO, Rajbhandari et al. 2020; FSDP2.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.collectives import collective_time
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Mesh, MeshAxis
from autoplan.ir.placement import CollectiveKind

__all__ = ["DataParallelTimes", "data_parallel_times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelTimes:
    """Seconds for one FSDP unit or DDP stage: one gather, one gradient reduction, one update."""

    gather: float
    reduce: float
    publish: float


def data_parallel_times(
    *, numel: int, trainable: int, itemsize: int, zero: int, mesh: Mesh, cluster: Cluster
) -> DataParallelTimes:
    """Seconds of the data-parallel collectives of ``numel`` local parameters.

    ``itemsize`` is bytes of an element in the compute dtype. FSDP2 reduces in float32, DDP
    in the compute dtype.
    """
    if mesh.dp == 1 or numel == 0:
        return DataParallelTimes(gather=0.0, reduce=0.0, publish=0.0)
    node = cluster.ranks_per_node
    if zero <= 1:
        group = mesh.group(MeshAxis.DP_REPLICATE, node, through=MeshAxis.DP_SHARD)
        payload = trainable * itemsize
        reduce = collective_time(CollectiveKind.ALL_REDUCE, payload, group, cluster)
        publish = 0.0
        if zero == 1:
            publish = collective_time(CollectiveKind.ALL_GATHER, payload, group, cluster)
        return DataParallelTimes(gather=0.0, reduce=reduce, publish=publish)
    shard = mesh.group(MeshAxis.DP_SHARD, node)
    gather = collective_time(CollectiveKind.ALL_GATHER, numel * itemsize, shard, cluster)
    reduce = collective_time(CollectiveKind.REDUCE_SCATTER, trainable * 4, shard, cluster)
    if mesh.dp_replicate > 1:
        replicas = mesh.group(MeshAxis.DP_REPLICATE, node)
        local = trainable * 4 // mesh.dp_shard
        reduce += collective_time(CollectiveKind.ALL_REDUCE, local, replicas, cluster)
    return DataParallelTimes(gather=gather, reduce=reduce, publish=0.0)
