"""Seconds of the collectives that data parallelism adds to a block or a stage.

ZeRO levels: 0 keeps everything on each rank (all_reduce of gradients); 1 shards the
optimizer state (all_reduce, then an all_gather of the updated parameters); 2 and 3 shard
parameters, gradients and optimizer state with FSDP2, where 2 keeps the gathered parameters
from forward to backward and 3 gathers again. Source: ZeRO, Rajbhandari et al. 2020; FSDP2.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.collectives import collective_time
from autoplan.costs.compute import memory_time, update_time
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Mesh, MeshAxis
from autoplan.ir.placement import CollectiveKind

__all__ = ["AS_PLANNED", "AT_THE_END", "DataParallelTimes", "GradientSync", "data_parallel_times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSync:
    """How a run sums its gradients, where it differs from what a plan's own program does.

    ``overlaps``: beside the backward, as DDP and FSDP2 do it; Megatron-LM and DeepSpeed pipelines
    wait for its end. ``itemsize`` is bytes of an element on the wire; 0 stands for the compute
    dtype at ZeRO 0 and 1, and float32 at 2 and 3.
    """

    overlaps: bool = True
    itemsize: int = 0


AS_PLANNED = GradientSync()
AT_THE_END = GradientSync(overlaps=False)
"""What the program does under schedules that split backwards, which DDP's hooks do not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelTimes:
    """Seconds for one FSDP unit or DDP stage: one gather, one gradient reduction, one update.

    ``accumulate`` is seconds to add a microbatch's gradients to those before it, which a rank
    without data parallelism does too. ``unpack`` is what FSDP2 computes around a gather: it
    copies the shards into one buffer, and what it gathered into the parameters. ``pack`` is that
    of a reduction: gradients are copied into a buffer, with DDP only once a step. ``reduced`` is
    bytes that the reduction sums.
    """

    gather: float
    reduce: float
    publish: float
    accumulate: float = 0.0
    unpack: float = 0.0
    pack: float = 0.0
    reduced: int = 0


def data_parallel_times(
    *,
    numel: int,
    trainable: int,
    itemsize: int,
    zero: int,
    mesh: Mesh,
    cluster: Cluster,
    tensors: int = 1,
    sync: GradientSync = AS_PLANNED,
) -> DataParallelTimes:
    """Seconds of the data-parallel collectives of ``numel`` local elements in ``tensors``.

    ``itemsize`` is bytes of an element in the compute dtype. FSDP2 reduces in float32, DDP
    in the compute dtype, unless ``sync`` says otherwise.
    """
    held = trainable * itemsize if zero <= 1 else trainable * 4
    if zero >= 2 and mesh.pp == 1:
        held //= mesh.dp_shard
    accumulate = update_time(3 * held, cluster.accelerator)  # two read, one written
    if mesh.dp == 1 or numel == 0:
        return DataParallelTimes(gather=0.0, reduce=0.0, publish=0.0, accumulate=accumulate)
    sizes = cluster.sizes
    sent = sync.itemsize or (itemsize if zero <= 1 else 4)
    if zero <= 1:
        group = mesh.group(MeshAxis.DP_REPLICATE, sizes, through=MeshAxis.DP_SHARD)
        reduce = collective_time(CollectiveKind.ALL_REDUCE, trainable * sent, group, cluster)
        publish = 0.0
        if zero == 1:
            payload = trainable * itemsize
            owners = mesh.group(MeshAxis.DP_SHARD, sizes)
            publish = collective_time(CollectiveKind.ALL_GATHER, payload, owners, cluster)
        bucketed = update_time(2 * held, cluster.accelerator)
        return DataParallelTimes(
            gather=0.0,
            reduce=reduce,
            publish=publish,
            accumulate=accumulate,
            pack=bucketed,
            reduced=trainable * sent,
        )
    shard = mesh.group(MeshAxis.DP_SHARD, sizes)
    gather = collective_time(CollectiveKind.ALL_GATHER, numel * itemsize, shard, cluster)
    reduce = collective_time(CollectiveKind.REDUCE_SCATTER, trainable * sent, shard, cluster)
    if mesh.dp_replicate > 1:
        replicas = mesh.group(MeshAxis.DP_REPLICATE, sizes)
        local = trainable * sent // mesh.dp_shard
        reduce += collective_time(CollectiveKind.ALL_REDUCE, local, replicas, cluster)
    owned = numel / mesh.dp_shard
    accelerator = cluster.accelerator
    if accelerator.units is not None:
        unpack = accelerator.units.unpack.seconds(tensors, 4 * numel)
        pack = accelerator.units.pack.seconds(tensors, 4 * trainable)
    else:
        unpack = memory_time(owned * (4 + itemsize) + 2 * numel * itemsize, accelerator)
        pack = memory_time(trainable * (itemsize + sent), accelerator)
    return DataParallelTimes(
        gather=gather,
        reduce=reduce,
        publish=0.0,
        accumulate=accumulate,
        unpack=unpack,
        pack=pack,
        reduced=trainable * sent,
    )
