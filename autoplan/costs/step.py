"""Seconds of one training step from the times of its blocks.

Without a pipeline: microbatches one after another, then what data parallelism cannot hide,
then the optimizer. With one: the event simulation of the schedule, each stage followed by its
own tail. FSDP2 gathers and reductions run beside kernels, unit by unit; while both run, both are
slowed down, and what is left of either then goes on at full speed. On a synchronous device
nothing runs beside those: FSDP2 leaves that to streams, which a host has none of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.compute import memory_time, update_time
from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.ir.buckets import BucketedBlock, exposed_reduction
from autoplan.ir.hardware import Accelerator
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.overlap import NO_SLOW_DOWN, NO_WAITS, GatherWaits, SlowDown

__all__ = [
    "BlockTime",
    "StageTime",
    "UnitTime",
    "UpdateTraffic",
    "stage_time",
    "unit_time",
    "update_traffic",
]


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

    ``forward`` and ``backward`` include everything that delays the pipeline, but ``gathering``,
    which only passes that gather parameters wait for. ``exposed_dp`` is the part of the two, for
    all microbatches, that is data parallelism.
    ``tail_dp`` and ``tail_tp`` run after the last backward; ``tail_reduce`` is the part of
    ``tail_dp`` that backwards of other stages of the rank may still hide.
    """

    forward: float
    backward: float
    gathering: GatherWaits
    compute: float
    recompute: float
    exposed_tp: float
    exposed_dp: float
    tail_dp: float
    tail_tp: float
    tail_reduce: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTime:
    """Seconds of a block for one microbatch: kernels, collectives they wait for, those beside.

    ``forward`` and ``backward`` include copies around collectives and sums of gradients,
    ``backward`` also ``again``. ``gather_backward`` and ``reduce`` are those of every microbatch.
    """

    forward: float
    backward: float
    tp_forward: float
    tp_backward: float
    gather_forward: float = 0.0
    gather_backward: float = 0.0
    reduce: float = 0.0


def unit_time(block: BlockTime, *, zero: int, pipelined: bool, microbatches: int) -> UnitTime:
    """A block as one rank runs it: FSDP2's copies and collectives are beside its kernels."""
    times = block.data_parallel
    later = 1.0 - 1.0 / microbatches  # the first microbatch has no gradients to add to
    forward = block.forward
    backward = block.backward + block.again + later * times.accumulate
    gather_forward = gather_backward = reduce = 0.0
    if zero >= 2 and not pipelined:
        gather_forward, reduce = times.gather, times.reduce
        forward, backward = forward + times.unpack, backward + times.pack
        if zero == 3:
            gather_backward, backward = times.gather, backward + times.unpack
    elif zero >= 2:
        gather_forward = times.gather
        if zero == 3:
            # m + 1 gathers, see `simulate.Gathering.TURN`; the copy of one is in the tail.
            backward += times.unpack
    return UnitTime(
        forward=forward,
        backward=backward,
        tp_forward=block.tp_forward,
        tp_backward=block.tp_backward,
        gather_forward=gather_forward,
        gather_backward=gather_backward,
        reduce=reduce,
    )


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
    units = [
        unit_time(block, zero=zero, pipelined=pipelined, microbatches=microbatches)
        for block in blocks
    ]
    redone = sum(b.again for b in blocks)
    compute = shared + sum(u.forward + u.backward for u in units) - redone
    exposed_tp = sum(u.tp_forward + u.tp_backward for u in units)
    alone_forward = shared + sum(u.forward + u.tp_forward for u in units)
    alone_backward = sum(u.backward + u.tp_backward for u in units)
    forward, backward = alone_forward, alone_backward
    gathering, tail, hideable = NO_WAITS, 0.0, 0.0
    if zero >= 2 and blocks and not pipelined:
        if synchronous:
            forward, both = _synchronous(units, shared)
        else:
            forward, both = _beside(units, shared, slow_down)
        backward = both - forward
    if zero <= 1:
        summed = [
            BucketedBlock(
                u.backward + u.tp_backward, b.data_parallel.reduced, b.data_parallel.reduce
            )
            for u, b in zip(units, blocks, strict=True)
        ]
        reduce = sum(b.data_parallel.reduce for b in blocks)
        tail = exposed_reduction(reversed(summed), slow_down) if overlaps else reduce
        hideable = tail if overlaps else 0.0
        tail += sum(b.data_parallel.publish + b.data_parallel.pack for b in blocks)
    elif pipelined:
        tail = sum(b.data_parallel.reduce + b.data_parallel.pack for b in blocks)
        tail += sum(b.data_parallel.unpack for b in blocks)
        gathering = _waits(units, shared, slow_down, synchronous=synchronous)
    exposed = forward - alone_forward + backward - alone_backward
    return StageTime(
        forward=forward,
        backward=backward,
        gathering=gathering,
        compute=compute * microbatches,
        recompute=redone * microbatches,
        exposed_tp=exposed_tp * microbatches,
        exposed_dp=exposed * microbatches,
        tail_dp=tail,
        tail_tp=partial_grad,
        tail_reduce=hideable,
    )


def _synchronous(units: Sequence[UnitTime], shared: float) -> tuple[float, float]:
    """Seconds of a forward, and of it with its backward, if every collective is waited for."""
    forward = shared + sum(u.forward + u.tp_forward + u.gather_forward for u in units)
    backward = (u.backward + u.tp_backward + u.gather_backward + u.reduce for u in units)
    return forward, forward + sum(backward)


def _beside(units: Sequence[UnitTime], shared: float, slow_down: SlowDown) -> tuple[float, float]:
    """Seconds of a forward, and of it with its backward, as FSDP2 runs them on streams.

    A unit's gather is issued when the kernels of the unit before it start, that of the first with
    the forward; reductions run after kernels. Collectives run in the order of their issue, and
    the last is waited for.
    """
    gathers = [unit.gather_forward for unit in units]
    gathers += [unit.gather_backward for unit in reversed(units)]
    forward, backward = _forwards(units, shared), _backwards(units)
    both = _run([*forward, *backward], gathers, slow_down)
    both.wait(both.issued)
    return _run(forward, gathers, slow_down).now, both.now


def _waits(
    units: Sequence[UnitTime], shared: float, slow_down: SlowDown, *, synchronous: bool
) -> GatherWaits:
    """What gathers add to the passes of a pipelined stage, which does not reduce within them.

    A backward gathers as a forward does, but for its first unit: the order of the schedule decides
    how much of that gather is left.
    """
    gathers = [unit.gather_forward for unit in units]
    if synchronous or not units:
        return GatherWaits(forward=sum(gathers), backward=sum(gathers))
    forward, backward = _forwards(units, shared), _backwards(units)
    alone = _run(forward, gathers, slow_down).now
    beside = _run(forward, [*gathers, gathers[-1]], slow_down)
    later = _run(backward, [0.0, *reversed(gathers[:-1])], slow_down).now
    return GatherWaits(
        forward=alone - sum(work.kernels + work.idle for work in forward),
        backward=later - sum(work.kernels + work.idle for work in backward),
        beside=beside.now - alone,
        left=beside.left,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of a unit's kernels, of collectives that they wait for, of its reduction after."""

    kernels: float
    idle: float
    reduce: float = 0.0


def _forwards(units: Sequence[UnitTime], shared: float) -> list[_Work]:
    works = [_Work(unit.forward, unit.tp_forward) for unit in units]
    return [_Work(works[0].kernels + shared, works[0].idle), *works[1:]]


def _backwards(units: Sequence[UnitTime]) -> list[_Work]:
    return [_Work(unit.backward, unit.tp_backward, unit.reduce) for unit in reversed(units)]


def _run(works: Sequence[_Work], gathers: Sequence[float], slow_down: SlowDown) -> _Streams:
    """Streams when the last of the kernels end; each waits for its gather, the next is issued."""
    streams = _Streams(slow_down)
    coming = streams.issue(gathers[0])
    for index, work in enumerate(works):
        streams.wait(coming)
        if index + 1 < len(gathers):
            coming = streams.issue(gathers[index + 1])
        streams.compute(work.kernels)
        streams.idle(work.idle)
        streams.issue(work.reduce)
    return streams


class _Streams:
    """Kernels at the instant ``now``, and the collectives that have been issued by then."""

    def __init__(self, slow_down: SlowDown) -> None:
        self.now = 0.0
        self.issued = 0
        self._slow_down = slow_down
        self._left: deque[float] = deque()

    @property
    def left(self) -> float:
        """Seconds of collectives that have not ended."""
        return sum(self._left)

    def issue(self, seconds: float) -> int:
        """Number to wait for; nothing is issued that takes no time."""
        if not seconds:
            return 0
        self._left.append(seconds)
        self.issued += 1
        return self.issued

    def wait(self, number: int) -> None:
        """Let the kernels wait until so many collectives have ended."""
        while self.issued - len(self._left) < number:
            self.now += self._left.popleft()

    def idle(self, seconds: float) -> None:
        """Pass that time without kernels."""
        self.now += seconds
        while seconds and self._left:
            done = min(seconds, self._left[0])
            seconds -= done
            self._advance(done)

    def compute(self, seconds: float) -> None:
        """Run kernels of that many seconds."""
        compute, network = self._slow_down.compute, self._slow_down.network
        while seconds and self._left:
            span = min(seconds * compute, self._left[0] * network)
            seconds = 0.0 if span == seconds * compute else seconds - span / compute
            self.now += span
            self._advance(span / network)
        self.now += seconds

    def _advance(self, done: float) -> None:
        self._left[0] -= done
        if self._left[0] <= 1e-15:
            self._left.popleft()


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
