"""Seconds of one training step from the times of its blocks.

Without a pipeline: microbatches one after another, then what data parallelism cannot hide,
then the optimizer. With one: the event simulation of the schedule, each stage followed by its
own tail. FSDP2 gathers and reductions run beside compute: a block takes
``max(compute + exposed tp, its data-parallel collectives)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.data_parallel import DataParallelTimes

__all__ = ["BlockTime", "StageTime", "optimizer_bytes", "stage_time"]


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
) -> StageTime:
    """Times of a stage.

    ``shared`` is seconds of shared operators, which run outside of blocks and so never again,
    ``partial_grad`` seconds once a step.
    ``overlaps`` is `GradientSync.overlaps`, which only ZeRO 0 and 1 can do without.
    """
    later = 1.0 - 1.0 / microbatches  # the first microbatch has no gradients to add to
    forward = shared
    backward = 0.0
    summing = later * sum(b.data_parallel.accumulate for b in blocks)
    compute = shared + summing + sum(b.forward + b.backward for b in blocks)
    redone = sum(b.again for b in blocks)
    exposed_tp = sum(b.tp_forward + b.tp_backward for b in blocks)
    hidden_forward = hidden_backward = 0.0
    for block in blocks:
        times = block.data_parallel
        work_f = block.forward + block.tp_forward
        work_b = block.backward + block.tp_backward + block.again + later * times.accumulate
        net_f = net_b = 0.0
        if zero >= 2 and not pipelined:
            net_f = times.gather
            net_b = times.reduce + (times.gather if zero == 3 else 0.0)
        elif zero == 3:
            net_f = times.gather
        forward += max(work_f, net_f)
        backward += max(work_b, net_b)
        hidden_forward += work_f
        hidden_backward += work_b
    exposed = (forward - shared - hidden_forward) + (backward - hidden_backward)
    tail = 0.0
    if blocks:
        reduce = sum(b.data_parallel.reduce for b in blocks)
        publish = sum(b.data_parallel.publish for b in blocks)
        if zero <= 1:
            # DDP reduces buckets during the last backward; nothing hides the last bucket.
            last = blocks[0].data_parallel.reduce
            tail = (max(last, reduce - hidden_backward) if overlaps else reduce) + publish
        elif pipelined:
            gather = sum(b.data_parallel.gather for b in blocks)
            tail = reduce + max(0.0, gather - hidden_forward if zero == 2 else 0.0)
        else:
            tail = blocks[0].data_parallel.gather + blocks[0].data_parallel.reduce
    return StageTime(
        forward=forward,
        backward=backward,
        compute=compute * microbatches,
        recompute=redone * microbatches,
        exposed_tp=exposed_tp * microbatches,
        exposed_dp=exposed * microbatches,
        tail_dp=tail,
        tail_tp=partial_grad,
    )


def optimizer_bytes(
    trainable: int, *, zero: int, dp_shard: int, itemsize: int, adam: bool
) -> float:
    """Bytes that the parameter update streams.

    Adam reads parameter, gradient and two moments and writes three of them, in float32; SGD
    reads two and writes one. A copy in the compute dtype is written when it differs.
    """
    owned = trainable / dp_shard if zero >= 1 else float(trainable)
    streams = 7 if adam else 3
    cast = itemsize if zero <= 1 and itemsize < 4 else 0
    return owned * (4 * streams + cast)
