"""Sums of a model, and lower bounds on the step time of a configuration, before pricing it.

The sum over blocks of the least intra-operator objective and of the least recompute that memory
forces (`memory_bounds`), run through `pipeline_bound`, with the data-parallel collectives of
fully sharded parameters beside it: below what any strategies, levels and cut can reach in this
cost model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplan.costs.compute import is_view
from autoplan.costs.data_parallel import DataParallelTimes, data_parallel_times
from autoplan.costs.fusion import fusion
from autoplan.costs.step import update_traffic
from autoplan.costs.workspace import FUSED_LOSSES
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Graph, Op
from autoplan.ir.hardware import Accelerator, Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.overlap import overlapped_time
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.schedules import SPLIT
from autoplan.solver.between import scalar_time
from autoplan.solver.frames import class_counts
from autoplan.solver.loop_bound import loop_factor
from autoplan.solver.space import Configuration

__all__ = [
    "ModelSize",
    "Roofline",
    "class_data_times",
    "model_size",
    "once_a_step",
    "pipeline_bound",
    "roofline",
    "time_bound",
    "total_times",
    "update_bound",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Whole-model sums at one microbatch size.

    ``kept`` is, for each class of blocks, the bytes that a copy holds from forward to backward
    by recompute level. ``first_gradient`` is bytes of what the backward makes while all of that
    is still held, ``batch`` those of a microbatch's inputs. ``parameters`` is (all, trainable)
    elements of a copy of each class, tied ones with the first class that uses them;
    ``handed_on`` the least bytes that one block hands to the next.
    """

    numel: int
    trainable: int
    copies: tuple[int, ...]
    kept: tuple[Mapping[Recompute, int], ...]
    parameters: tuple[tuple[int, int], ...]
    tied: tuple[int, ...]
    first_gradient: int
    batch: int
    handed_on: int

    def least_kept(self, levels: Sequence[Recompute]) -> int:
        """Bytes that a microbatch keeps at least at those levels."""
        return sum(
            count * min(kept[level] for level in levels)
            for count, kept in zip(self.copies, self.kept, strict=True)
        )


def pipeline_bound(total: float, stages: int, microbatches: int) -> float:
    """Least seconds in which any cut into ``stages`` can run ``microbatches``.

    ``total`` is the time of one microbatch through all stages. Stage s works ``m t_s`` and waits
    at least for one microbatch to pass the stages before it, forward and back, so
    ``T >= m t_s + sum_{j<s} t_j`` for every s, of which this is a weighted sum in which every t
    has the same factor.
    """
    left = (1.0 - 1.0 / microbatches) ** (stages - 1)
    return total / (1.0 - left * (1.0 - 1.0 / microbatches))


def model_size(graph: Graph) -> ModelSize:
    """Sums over the chain of a graph; parameters that no block uses are not held."""
    used = {fqn for instance in graph.instances for fqn in instance.parameters}
    parameters = [p for p in graph.parameters if p.fqn in used]
    own = list(_own_parameters(graph))
    return ModelSize(
        numel=sum(p.numel for p in parameters),
        trainable=sum(p.numel for p in parameters if p.trainable),
        copies=tuple(class_counts(graph)),
        kept=tuple(_kept_bytes(block) for block in graph.classes),
        parameters=tuple(own),
        tied=tuple(
            sum(math.prod(block.tensor(name).shape) for name in block.parameters) - numel
            for block, (numel, _) in zip(graph.classes, own, strict=True)
        ),
        first_gradient=_first_gradient(graph.block_class(graph.instances[-1])),
        batch=sum(tensor.size for tensor in graph.inputs),
        handed_on=min((_input_bytes(graph.block_class(i)) for i in graph.instances[1:]), default=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds of a microbatch: what ranks can share at best, and kernels that each must start."""

    shared: float = 0.0
    latency: float = 0.0

    def microbatch(self, tp: int) -> float:
        """Seconds that no strategies on ``tp`` ranks can beat."""
        return self.shared / tp + self.latency


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
    seconds = 0.0
    kernels = 0
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
                seconds += count * max(work, sum(t.size for t in made) / bandwidth)
                kernels += count
            received = sum(tensor.size for tensor in made if tensor.requires_grad)
            wanted = any(block.tensor(name).requires_grad for name in op.inputs)
            if received and wanted and not (view and op.flop_backward == 0):
                work = op.flop_backward / rate if counted else 0.0
                seconds += count * max(work, received / bandwidth)
                kernels += count
    return Roofline(shared=seconds, latency=kernels * accelerator.kernel_latency)


def _kept_bytes(block: BlockClass) -> dict[Recompute, int]:
    """Bytes that a copy of a block surely keeps; those who receive what it hands on keep that."""
    others = {*block.parameters, *block.buffers, *block.shared}
    others |= {block.tensor(name).base for name in block.outputs}
    selected = [
        name for op in block.ops if is_kept(op) and op.target != EXPERTS for name in op.outputs
    ]

    def own(names: Iterable[str]) -> int:
        bases = {block.tensor(name).base for name in names} - others
        return sum(block.tensor(base).size for base in bases)

    # A checkpoint keeps nothing where autograd saves nothing.
    saves = bool(block.parameters) or any(op.saved for op in block.ops)
    extras = {
        level: sum(
            _sure_extra(op, block)
            for op in block.ops
            if op.target != EXPERTS and (level is Recompute.NONE or is_kept(op))
        )
        for level in (Recompute.NONE, Recompute.SELECTIVE)
    }
    named = (name for op in block.ops for name in op.saved)
    return {
        Recompute.NONE: own(named) + extras[Recompute.NONE],
        Recompute.SELECTIVE: (own([*block.inputs, *selected]) + extras[Recompute.SELECTIVE])
        * saves,
        Recompute.FULL: own(block.inputs) * saves,
    }


def _sure_extra(op: Op, block: BlockClass) -> int:
    """Bytes that an operator keeps beside named tensors; a loss may keep its scores instead."""
    if op.target in FUSED_LOSSES:
        scores = block.tensor(op.inputs[0])
        known = any(scores.base == block.tensor(n).base for other in block.ops for n in other.saved)
        return 0 if known else min(op.saved_extra, scores.size)
    return op.saved_extra


def _own_parameters(graph: Graph) -> Iterator[tuple[int, int]]:
    trainable = {p.fqn: p.trainable for p in graph.parameters}
    seen: set[str] = set()
    first = {instance.block_class: instance for instance in reversed(graph.instances)}
    for index in range(len(graph.classes)):
        own = [fqn for fqn in first[index].parameters if fqn not in seen]
        seen.update(own)
        counts = {fqn: graph.parameter(fqn).numel for fqn in own}
        yield sum(counts.values()), sum(n for fqn, n in counts.items() if trainable[fqn])


def _input_bytes(block: BlockClass) -> int:
    return sum(block.tensor(name).size for name in block.inputs)


def _first_gradient(block: BlockClass) -> int:
    """Bytes of the gradients that the last operator with saved tensors gives to activations.

    Whatever the model keeps is held until that operator's backward has run.
    """
    for op in reversed(block.ops):
        if op.saved and any(block.tensor(name).requires_grad for name in op.outputs):
            given = {name for name in op.inputs if name not in block.parameters}
            wanted = (block.tensor(name) for name in given)
            return sum(tensor.size for tensor in wanted if tensor.requires_grad)
    return 0


def time_bound(
    size: ModelSize,
    configuration: Configuration,
    cluster: Cluster,
    *,
    operators: float,
    program: float,
    data: DataParallelTimes,
    itemsize: int,
    update: UpdateRule,
) -> float:
    """Seconds that the step takes at least.

    ``operators`` bounds the operators of one microbatch, ``program`` them plus collectives of
    the model axis and a microbatch's share of the once-a-step sums of partial gradients: those
    delay their own stage only, so it holds on average over the stages but not along the
    pipeline. ``data`` is that of all blocks.
    """
    mesh, microbatches = configuration.mesh, configuration.microbatches
    end = update_bound(size, configuration, cluster, itemsize, update=update)
    summing = (1.0 - 1.0 / microbatches) * data.accumulate
    if configuration.pipelined:
        tail = once_a_step(data, configuration)
        if configuration.looped:
            least = (microbatches * (program + summing) + tail) / mesh.pp
            if configuration.schedule in SPLIT:
                return end + least
            factor = loop_factor(mesh.pp, configuration.virtual_stages, microbatches)
            return end + max(factor * (operators + summing), least)
        return end + max(
            pipeline_bound(operators + summing, mesh.pp, microbatches),
            (microbatches * (program + summing) + tail) / mesh.pp,
        )
    work = max(operators, program)
    if configuration.zero >= 2:
        again = 2 if configuration.zero == 3 else 1
        copies = summing + data.pack + again * data.unpack
        beside = again * data.gather + data.reduce
        if cluster.accelerator.synchronous:
            return microbatches * (work + copies + beside) + end
        return microbatches * _beside(operators, copies, work, beside, cluster) + end
    last = _beside(operators, summing, work, data.reduce, cluster)
    if not configuration.sync.overlaps:
        last = work + summing + data.reduce
    return (microbatches - 1) * (work + summing) + last + data.publish + data.pack + end


def update_bound(
    size: ModelSize,
    configuration: Configuration,
    cluster: Cluster,
    itemsize: int,
    *,
    update: UpdateRule,
) -> float:
    """Seconds that the update of the fullest rank's parameters takes at least."""
    mesh = configuration.mesh
    moved = update_traffic(
        size.trainable // (mesh.tp * mesh.pp),
        zero=configuration.zero,
        dp_shard=mesh.dp_shard,
        itemsize=itemsize,
        update=update,
    )
    return moved.seconds(cluster.accelerator) + scalar_time(configuration, cluster)


def _beside(kernels: float, copies: float, work: float, network: float, cluster: Cluster) -> float:
    """Least seconds of a microbatch's ``work`` and ``copies`` with collectives beside them.

    Nothing slows collectives while kernels wait for those of the model axis, ``work - kernels``.
    Where both slow each other so much that the two in turn take less, they may come in turn.
    """
    waiting = max(0.0, work - kernels)
    slow_down = cluster.accelerator.slow_down
    left = max(0.0, network - waiting)
    busy = work - waiting + copies
    beside = overlapped_time(busy, left, slow_down.compute, slow_down.network)
    return waiting + min(beside, busy + left)


def class_data_times(
    size: ModelSize, configuration: Configuration, cluster: Cluster, itemsize: int
) -> list[DataParallelTimes]:
    """Seconds of a copy's data-parallel collectives by class, were parameters sharded on tp."""
    tp = configuration.mesh.tp
    return [
        data_parallel_times(
            numel=numel // tp,
            trainable=trainable // tp,
            itemsize=itemsize,
            zero=configuration.zero,
            mesh=configuration.mesh,
            cluster=cluster,
            sync=configuration.sync,
        )
        for numel, trainable in size.parameters
    ]


def total_times(copies: Sequence[int], times: Sequence[DataParallelTimes]) -> DataParallelTimes:
    """Seconds of all copies of all classes."""

    def total(name: str) -> float:
        seconds: list[float] = [getattr(t, name) for t in times]
        return sum(n * s for n, s in zip(copies, seconds, strict=True))

    return DataParallelTimes(
        gather=total("gather"),
        reduce=total("reduce"),
        publish=total("publish"),
        accumulate=total("accumulate"),
        unpack=total("unpack"),
        pack=total("pack"),
    )


def once_a_step(times: DataParallelTimes, configuration: Configuration) -> float:
    """Seconds at the end of a pipeline's step that nothing hides."""
    seconds = times.pack + times.publish
    if configuration.zero >= 2:
        seconds += times.reduce + times.unpack
    return seconds
