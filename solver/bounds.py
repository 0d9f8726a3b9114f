"""Lower bounds on the step time and memory of a configuration, before pricing it.

Time: the sum over blocks of the least intra-operator objective, run through
`pipeline_bound`, with the data-parallel collectives of fully sharded parameters beside it.
Memory: training state and saved activations as if everything divided evenly over tp and the
stages. Both are below what any strategies and any cut can reach in this cost model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.costs.compute import is_view
from autoplan.costs.data_parallel import data_parallel_times
from autoplan.costs.fusion import fusion
from autoplan.costs.memory import born_late, state_bytes
from autoplan.costs.step import update_traffic
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Accelerator, Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.solver.blocks import class_counts
from autoplan.solver.least_kept import least_kept
from autoplan.solver.space import Configuration

__all__ = [
    "ModelSize",
    "Roofline",
    "memory_bound",
    "model_size",
    "pipeline_bound",
    "roofline",
    "time_bound",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Whole-model sums at one microbatch size: elements, and bytes kept by one microbatch."""

    numel: int
    trainable: int
    kept: Mapping[Recompute, int]


def pipeline_bound(total: float, stages: int, microbatches: int) -> float:
    """Least seconds in which any cut into ``stages`` can run ``microbatches``.

    ``total`` is the time of one microbatch through all stages. Stage s works ``m t_s`` and
    waits at least for one microbatch to pass the stages before it, forward and back:
    ``T >= m t_s + sum_{j<s} t_j`` for every s, whose least common T is
    ``total / (1 - (1 - 1/m)^stages)``.
    """
    return total / (1.0 - (1.0 - 1.0 / microbatches) ** stages)


def model_size(graph: Graph) -> ModelSize:
    """Sums over the chain of a graph; parameters that no block uses are not held."""
    used = {fqn for instance in graph.instances for fqn in instance.parameters}
    parameters = [p for p in graph.parameters if p.fqn in used]
    return ModelSize(
        numel=sum(p.numel for p in parameters),
        trainable=sum(p.numel for p in parameters if p.trainable),
        kept=least_kept(graph),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds of a microbatch: what ranks can share at best, and kernels that each must start.

    ``again`` is the part of the forward that selective recompute runs again.
    """

    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0
    forward_latency: float = 0.0
    backward_latency: float = 0.0
    again_latency: float = 0.0

    def microbatch(self, tp: int, *, recompute: Recompute) -> float:
        """Seconds that no strategies on ``tp`` ranks can beat."""
        forward = self.forward / tp + self.forward_latency
        seconds = forward + self.backward / tp + self.backward_latency
        match recompute:
            case Recompute.NONE:
                return seconds
            case Recompute.SELECTIVE:
                return seconds + self.again / tp + self.again_latency
            case Recompute.FULL:
                return seconds + forward


def roofline(graph: Graph, accelerator: Accelerator) -> Roofline:
    """Least work of the chain of a graph: products at the best rate, results written once.

    Nothing where operators were measured: no peak is known that none of them beats.
    """
    if accelerator.operators is not None:
        return Roofline()
    rate = max((peak for _, peak in accelerator.matmul_peak), default=math.inf)
    rate *= max(1.0, *(share for _, share in accelerator.matmul_efficiency.points))
    bandwidth = accelerator.memory_bandwidth
    bandwidth *= max(1.0, *(share for _, share in accelerator.memory_efficiency.points))
    forward = backward = again = 0.0
    forward_kernels = backward_kernels = again_kernels = 0
    for count, block in zip(class_counts(graph), graph.classes, strict=True):
        fused = fusion(block) if accelerator.compiled else None
        for op in block.ops:
            if op.target == EXPERTS:
                continue  # its kernels are not those of one product
            if fused is not None and (op.name in fused.shares or op.name in fused.absorbed):
                continue  # its result may never be written
            # Of attention's products a kernel may skip what the mask hides.
            counted = "scaled_dot_product" not in op.target
            made = [block.tensor(name) for name in op.outputs]
            view = is_view(op, block)
            if not view:
                work = op.flop / rate if counted else 0.0
                seconds = count * max(work, sum(t.size for t in made) / bandwidth)
                forward += seconds
                forward_kernels += count
                if not is_kept(op):
                    again += seconds
                    again_kernels += count
            received = sum(tensor.size for tensor in made if tensor.requires_grad)
            wanted = any(block.tensor(name).requires_grad for name in op.inputs)
            if received and wanted and not (view and op.flop_backward == 0):
                work = op.flop_backward / rate if counted else 0.0
                backward += count * max(work, received / bandwidth)
                backward_kernels += count
    return Roofline(
        forward=forward,
        backward=backward,
        again=again,
        forward_latency=forward_kernels * accelerator.kernel_latency,
        backward_latency=backward_kernels * accelerator.kernel_latency,
        again_latency=again_kernels * accelerator.kernel_latency,
    )


def memory_bound(
    size: ModelSize, configuration: Configuration, itemsize: int, *, update: UpdateRule
) -> int:
    """Bytes that the fullest rank needs at least."""
    mesh = configuration.mesh
    settings = configuration.memory_settings(itemsize, update=update)
    parts = mesh.tp * mesh.pp
    state = state_bytes(size.numel // parts, size.trainable // parts, settings)
    kept = size.kept[configuration.recompute] // parts
    if born_late(settings):
        return sum(state) - state[1] + max(state[1], kept)
    if settings.zero >= 2 and settings.pipelined:
        # Gradients are born in the first backward, and level 3 has gathered all when it ends.
        late = state[1] + (state[3] if settings.zero == 3 else 0)
        return sum(state) - late + max(late, kept)
    return sum(state) + kept


def time_bound(
    graph: Graph,
    size: ModelSize,
    configuration: Configuration,
    cluster: Cluster,
    *,
    operators: float,
    program: float,
    update: UpdateRule,
) -> float:
    """Seconds that the step takes at least.

    ``operators`` bounds the work of one microbatch. ``program`` bounds that work plus a
    microbatch's share of the once-a-step sums of partial gradients: those delay their own
    stage only, so it holds on average over the stages but not along the pipeline.
    """
    mesh = configuration.mesh
    parts = mesh.tp * mesh.pp
    moved = update_traffic(
        size.trainable // parts,
        zero=configuration.zero,
        dp_shard=mesh.dp_shard,
        itemsize=dtype_size(graph.dtype),
        update=update,
    )
    updating = (moved.in_place + moved.filled) / cluster.accelerator.memory_bandwidth
    microbatches = configuration.microbatches
    summing = _summing_time(size, configuration, dtype_size(graph.dtype), cluster)
    operators, program = operators + summing, program + summing
    if configuration.pipelined:
        along = pipeline_bound(operators, mesh.pp, microbatches)
        return updating + max(along, microbatches * program / mesh.pp)
    work = max(operators, program)
    gather, reduce = _collectives(graph, configuration, cluster)
    tail = 0.0
    if configuration.zero >= 2:
        gathers = 2 if configuration.zero == 3 else 1
        work = max(work, gathers * gather + reduce)
    else:
        tail = max(0.0, reduce - work)
    return microbatches * work + tail + updating


def _summing_time(
    size: ModelSize, configuration: Configuration, itemsize: int, cluster: Cluster
) -> float:
    """Seconds of a microbatch, on average, to add its gradients to those of earlier ones."""
    mesh = configuration.mesh
    held = size.trainable // mesh.tp * (itemsize if configuration.zero <= 1 else 4)
    if configuration.zero >= 2:
        held //= mesh.dp_shard
    later = 1.0 - 1.0 / configuration.microbatches
    return later * 3 * held / cluster.accelerator.memory_bandwidth


def _collectives(
    graph: Graph, configuration: Configuration, cluster: Cluster
) -> tuple[float, float]:
    """Seconds of gathering and of reducing every block once, were all parameters sharded."""
    gather = reduce = 0.0
    trainable = {p.fqn: p.trainable for p in graph.parameters}
    seen: set[str] = set()
    first = {instance.block_class: instance for instance in reversed(graph.instances)}
    for index, count in enumerate(class_counts(graph)):
        own = [fqn for fqn in first[index].parameters if fqn not in seen]
        seen.update(own)
        counts = {fqn: graph.parameter(fqn).numel // configuration.mesh.tp for fqn in own}
        times = data_parallel_times(
            numel=sum(counts.values()),
            trainable=sum(n for fqn, n in counts.items() if trainable[fqn]),
            itemsize=dtype_size(graph.dtype),
            zero=configuration.zero,
            mesh=configuration.mesh,
            cluster=cluster,
        )
        gather += count * times.gather
        reduce += count * times.reduce
    return gather, reduce
