"""Seconds between ranks and once a step: messages, sums that no block hides, the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.costs.collectives import collective_time
from autoplan.costs.compute import memory_time, update_time
from autoplan.costs.step import update_traffic
from autoplan.ir.graph import BlockInstance, Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group, MeshAxis
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.placement import CollectiveKind
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.inter import StageCut
from autoplan.solver.space import Configuration

__all__ = [
    "blocks_of_ranks",
    "local_counts",
    "optimizer_times",
    "partial_grad_time",
    "scalar_time",
    "send_times",
    "tied_times",
]

_SCALAR = 8  # bytes: float64


def blocks_of_ranks(
    graph: Graph, configuration: Configuration, cut: StageCut
) -> list[list[BlockInstance]]:
    """Blocks of all stages of each pipeline rank."""
    held: list[list[BlockInstance]] = [[] for _ in range(configuration.mesh.pp)]
    for rank, (first, last) in zip(configuration.ranks_of_stages, cut.ranges, strict=True):
        held[rank] += graph.instances[first:last]
    return held


def local_counts(point: ModelPoint, instance: BlockInstance) -> dict[str, int]:
    """Local elements of each parameter of an instance, by FQN."""
    held = point.costs[instance.block_class].parameters
    return {fqn: count for fqn, (_, count, _) in zip(instance.parameters, held, strict=True)}


def partial_grad_time(
    configuration: Configuration,
    point: ModelPoint,
    chosen: Sequence[BlockInstance],
    cluster: Cluster,
    itemsize: int,
) -> float:
    """Seconds of the one all_reduce over tp of a stage's partial gradients."""
    elements = 0
    for instance in chosen:
        partial = set(point.costs[instance.block_class].partial_grads)
        held = point.costs[instance.block_class].parameters
        elements += sum(count for name, count, _ in held if name in partial)
    group = configuration.mesh.group(MeshAxis.TP, cluster.sizes)
    size = int(elements * configuration.gradient_bytes(itemsize))
    return _sum_time(size, group, cluster)


def _sum_time(size: int, group: Group, cluster: Cluster) -> float:
    """Seconds to sum gradients, which are copied into one tensor and back."""
    accelerator = cluster.accelerator
    seconds = collective_time(CollectiveKind.ALL_REDUCE, size, group, cluster)
    if group.ranks > 1:
        seconds += memory_time(2 * size, accelerator) + update_time(2 * size, accelerator)
    return seconds


def send_times(
    graph: Graph, configuration: Configuration, point: ModelPoint, cluster: Cluster
) -> list[float]:
    """Seconds to send each block's boundary to the next stage, for one microbatch.

    Where messages are scattered, a rank of the model axis sends its part, and the parts are
    gathered at the receiver (Narayanan et al. 2021, arXiv 2104.04473, section 4.1).
    """
    if not configuration.pipelined:
        return []
    pair = configuration.mesh.group(MeshAxis.PP, cluster.sizes).pair()
    peers = configuration.mesh.group(MeshAxis.TP, cluster.sizes)
    parts = peers.ranks if point.scattered else 1

    def seconds(size: int) -> float:
        sent = collective_time(CollectiveKind.P2P, size / parts, pair, cluster)
        if parts == 1:
            return sent
        return sent + collective_time(CollectiveKind.ALL_GATHER, size, peers, cluster)

    return [seconds(point.costs[receiver.block_class].boundary) for receiver in graph.instances[1:]]


def scalar_time(configuration: Configuration, cluster: Cluster) -> float:
    """Seconds of the sums of single numbers a step: the gradients' norm, and the loss."""
    mesh, sizes = configuration.mesh, cluster.sizes
    summed = [MeshAxis.TP, MeshAxis.PP, MeshAxis.PP]
    groups = [mesh.group(axis, sizes) for axis in summed]
    if configuration.zero >= 2:
        groups.append(mesh.group(MeshAxis.DP_SHARD, sizes))
    groups.append(mesh.group(MeshAxis.DP_REPLICATE, sizes, through=MeshAxis.DP_SHARD))
    return sum(
        collective_time(CollectiveKind.ALL_REDUCE, _SCALAR, group, cluster) for group in groups
    )


def optimizer_times(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    cluster: Cluster,
    cut: StageCut,
    update: UpdateRule,
) -> list[float]:
    """Seconds of the update of each pipeline rank's parameters."""
    accelerator = cluster.accelerator
    seconds = []
    trainable = {p.fqn: p.trainable for p in graph.parameters}
    for instances in blocks_of_ranks(graph, configuration, cut):
        held: set[str] = set()
        numel = 0
        for instance in instances:
            cost = point.costs[instance.block_class]
            for fqn, (_, count, _) in zip(instance.parameters, cost.parameters, strict=True):
                if fqn not in held and trainable[fqn]:
                    numel += count
                held.add(fqn)
        moved = update_traffic(
            numel,
            zero=configuration.zero,
            dp_shard=configuration.mesh.dp_shard,
            itemsize=dtype_size(graph.dtype),
            update=update,
        )
        seconds.append(moved.seconds(accelerator))
    return seconds


def tied_times(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    cluster: Cluster,
    cut: StageCut,
) -> list[float]:
    """Seconds once a step, by pipeline rank, to sum gradients of parameters that several hold."""
    seconds = [0.0] * configuration.mesh.pp
    if not configuration.pipelined:
        return seconds
    ranks_of: Mapping[str, set[int]] = {p.fqn: set() for p in graph.parameters}
    counts: dict[str, int] = {}
    for rank, instances in enumerate(blocks_of_ranks(graph, configuration, cut)):
        for instance in instances:
            counts.update(local_counts(point, instance))
            for fqn in instance.parameters:
                ranks_of[fqn].add(rank)
    whole = configuration.mesh.group(MeshAxis.PP, cluster.sizes)
    for fqn, held in ranks_of.items():
        if len(held) > 1:
            size = int(counts[fqn] * configuration.gradient_bytes(dtype_size(graph.dtype)))
            group = whole.of_size(len(held))
            summing = _sum_time(size, group, cluster)
            for rank in held:
                seconds[rank] += summing
    return seconds
