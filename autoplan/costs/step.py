"""Seconds of one training step from the times of its blocks.

Without a pipeline: microbatches one after another, then what data parallelism cannot hide,
then the optimizer. With one: the event simulation of the schedule, each stage followed by its
own tail. FSDP2 gathers and reductions run beside compute and exposed tp; while both run, both
are slowed down, and what is left of either then goes on at full speed (`ir.overlap`). On a
synchronous device nothing runs beside those: FSDP2 leaves that to streams, which a host has none
of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.buckets import BucketedBlock, exposed_reduction
from autoplan.costs.compute import memory_time, update_time
from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.ir.hardware import Accelerator
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.overlap import NO_SLOW_DOWN, SlowDown, overlapped_time

__all__ = ["BlockTime", "StageTime", "UpdateTraffic", "stage_time", "update_traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """Seconds of one block for one microbatch, and of its data-parallel collectives.

    ``again`` is what recompute adds to the backward, collectives included.
    """

    forward: float
    backward: float
    tp_forward: float
    tp_backward: float
    again: float
    data_parallel: DataParallelTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage: by microbatch, and once a step after (and before) all of them.

    ``forward`` and ``backward`` include everything that delays the pipeline;
    ``exposed_dp`` is the part of them, for all microbatches, that is data parallelism.
    ``tail_dp`` and ``tail_tp`` run after the last backward.
    """

    forward: float
    backward: float
    compute: float
    recompute: float
    exposed_tp: float
    exposed_dp: float
    tail_dp: float
    tail_tp: float


def stage_time(
    blocks: Sequence[BlockTime],
    *,
    zero: int,
    pipelined: bool,
    microbatches: int,
    shared: float,
    partial_grad: float,
    overlaps: bool = True,
    slow_down: SlowDown = NO_SLOW_DOWN,
    synchronous: bool = False,
) -> StageTime:
    """Times of a stage.

    ``shared`` is seconds of shared operators, which run outside of blocks and so never again,
    ``partial_grad`` seconds once a step.
    ``overlaps`` is `GradientSync.overlaps`, which only ZeRO 0 and 1 can do without;
    ``synchronous`` is that of the `Accelerator`.
    """

    def beside(work: float, network: float) -> float:
        if synchronous:
            return work + network
        return overlapped_time(work, network, slow_down.compute, slow_down.network)

    later = 1.0 - 1.0 / microbatches  # the first microbatch has no gradients to add to
    forward = shared
    backward = 0.0
    summing = later * sum(b.data_parallel.accumulate for b in blocks)
    copies_forward = copies_backward = 0.0
    compute = shared + summing + sum(b.forward + b.backward for b in blocks)
    redone = sum(b.again for b in blocks)
    exposed_tp = sum(b.tp_forward + b.tp_backward for b in blocks)
    hidden_forward = hidden_backward = 0.0
    summed: list[BucketedBlock] = []
    for block in blocks:
        times = block.data_parallel
        work_f = block.forward + block.tp_forward
        work_b = block.backward + block.tp_backward + block.again + later * times.accumulate
        net_f = net_b = 0.0
        copied_f = copied_b = 0.0
        if zero >= 2 and not pipelined:
            net_f = times.gather
            net_b = times.reduce + (times.gather if zero == 3 else 0.0)
            copied_f = times.unpack
            copied_b = times.pack + (times.unpack if zero == 3 else 0.0)
        elif zero == 3:
            net_f, copied_f = times.gather, times.unpack
        work_f, work_b = work_f + copied_f, work_b + copied_b
        copies_forward, copies_backward = copies_forward + copied_f, copies_backward + copied_b
        forward += beside(work_f, net_f)
        backward += beside(work_b, net_b)
        hidden_forward += work_f
        hidden_backward += work_b
        summed.append(BucketedBlock(work_b, times.reduced, times.reduce))
    exposed = (forward - shared - hidden_forward) + (backward - hidden_backward)
    tail = 0.0
    if blocks:
        reduce = sum(b.data_parallel.reduce for b in blocks)
        publish = sum(b.data_parallel.publish for b in blocks)
        if zero <= 1:
            tail = exposed_reduction(reversed(summed), slow_down) if overlaps else reduce
            tail += publish
            tail += sum(b.data_parallel.pack for b in blocks)
        elif pipelined:
            gather = sum(b.data_parallel.gather for b in blocks)
            tail = reduce + sum(b.data_parallel.pack for b in blocks)
            if zero == 2:
                tail += beside(hidden_forward, gather) - hidden_forward
                tail += sum(b.data_parallel.unpack for b in blocks)
        else:
            tail = blocks[0].data_parallel.gather + blocks[0].data_parallel.reduce
    return StageTime(
        forward=forward,
        backward=backward,
        compute=(compute + copies_forward + copies_backward) * microbatches,
        recompute=redone * microbatches,
        exposed_tp=exposed_tp * microbatches,
        exposed_dp=exposed * microbatches,
        tail_dp=tail,
        tail_tp=partial_grad,
    )


@dataclass(frozen=True, slots=True)
class UpdateTraffic:
    """Bytes that a rank moves once a step, after its last gradient.

    ``in_place`` are those of tensors updated where they lie, ``filled`` those that fill new ones.
    """

    in_place: float
    filled: float

    def seconds(self, accelerator: Accelerator) -> float:
        """Seconds to move them."""
        return update_time(self.in_place, accelerator) + memory_time(self.filled, accelerator)


def update_traffic(
    trainable: int, *, zero: int, dp_shard: int, itemsize: int, update: UpdateRule
) -> UpdateTraffic:
    """Bytes that clipping and the parameter update stream, as the runtime runs them.

    Clipping reads the gradients for their norm, then reads and writes them. At ZeRO 0 and 1 the
    gradients of the parameters a rank owns are laid out in a new tensor, in the dtype of what is
    updated.
    """
    owned = trainable / dp_shard if zero >= 1 else float(trainable)
    gradients = trainable * itemsize if zero <= 1 else owned * 4
    size = 4 if update.master else itemsize
    laid_out = owned * (itemsize + size) if zero <= 1 else 0.0
    return UpdateTraffic(
        in_place=update.streamed_bytes(owned, itemsize, cast=zero <= 1) + 3 * gradients,
        filled=laid_out,
    )
