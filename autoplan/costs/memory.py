"""Bytes on a rank of a pipeline stage.

Training state by dtype and ZeRO level (``d`` = dp_shard, ``c`` = bytes of the compute dtype):

=====  ==========  =============================  =========================
ZeRO   parameters  gradients                      optimizer (AdamW)
=====  ==========  =============================  =========================
0      c           c                              8 (+ 4 master if c < 4)
1      c           c                              the same / d
2, 3   4 / d       4 / d (pipeline: 4)            8 / d
=====  ==========  =============================  =========================

Moments of `UpdateRule.moment_bits` take their part of the 8, with scales where they are blocks
of 8 bits; a master is left out without `UpdateRule.master`, which only ZeRO 0 and 1 can be.

With DDP (0, 1) and several microbatches the gradients of all but the last are summed outside
DDP's buckets, which exist besides. With FSDP2 (2, 3) the gathered parameters come on top: all
of the stage's at level 2, two units (one computing, one arriving) at level 3. In a pipeline the
gradients of all microbatches accumulate unsharded, and level 3 lets go of gathered parameters in
forwards only: `costs.sharded` follows them. The limit of a plan applies to the sum of all parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.costs.messages import SentMessages
from autoplan.costs.sharded import Moment, ShardedStage, Unit
from autoplan.ir.optimizer import UpdateRule

__all__ = [
    "GENERATOR_STATE",
    "BlockMemory",
    "MemorySettings",
    "StageMemory",
    "StagePass",
    "born_late",
    "bucket_bytes",
    "stage_memory",
    "stage_pass",
    "state_bytes",
    "unit_bytes",
    "update_bytes",
]


GENERATOR_STATE = 5056
"""Bytes of the state of torch's CPU generator, of which each recomputed block keeps a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """What one block instance adds to a stage: local element counts and bytes.

    ``numel`` excludes parameters that an earlier block of the same stage already holds.
    ``largest`` is the trainable parameter with most elements. ``kept`` is bytes held from forward
    to backward of one microbatch; ``forward`` the largest temporary of its forward, ``working``
    that of its backward and recompute, ``fresh`` likewise with gradients of parameters that did
    not exist before and stay. ``inputs`` is bytes of the tensors that enter, ``kept_inputs`` which
    of them are in ``kept``, ``read_inputs`` which its operators read, ``outputs`` bytes of those
    that leave; an output is kept by the block, or is the input that ``passed`` says (-1: none).
    """

    numel: int
    trainable: int
    kept: int
    forward: int
    working: int
    fresh: int
    largest: int
    boundary_in: int
    boundary_out: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kept_inputs: tuple[bool, ...]
    read_inputs: tuple[bool, ...]
    kept_outputs: tuple[bool, ...]
    passed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Choices that set bytes for each parameter.

    ``replicated``: on several data ranks. ``host``: on CPUs, where gloo's all_gather and
    reduce_scatter work on a copy of their largest tensor, its handles hold what they sent, and
    torch adds tensors of two dtypes by converting one of them first. None of this exists on
    accelerators.
    """

    zero: int
    dp_shard: int
    itemsize: int
    update: UpdateRule
    pipelined: bool
    microbatches: int
    replicated: bool
    host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes by part; `peak` is their sum."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    buffers: int

    @property
    def peak(self) -> int:
        """Sum of the parts."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.transient
            + self.buffers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePass:
    """Bytes of a pipelined stage with whole parameters, and of a microbatch that passes it.

    ``kept`` is held from forward to backward by its blocks, ``unkept`` what it sends besides.
    ``forward`` and ``backward`` are the most in either pass, what is kept included; ``first`` that
    of the first backward, if gradients that it has yet to make are counted as there. ``received``
    and ``sent`` are bytes of a message from the stage before and to the next.
    """

    numel: int
    trainable: int
    kept: int
    unkept: int
    forward: int
    backward: int
    first: int
    received: int
    sent: int


def state_bytes(numel: int, trainable: int, settings: MemorySettings) -> tuple[int, int, int, int]:
    """Bytes of (parameters, gradients, optimizer state, gathered copies of all parameters).

    The last two of a step at their most: in a pipeline with FSDP2 gradients exist only from the
    first backward on, and at level 3 all parameters are gathered only between a backward and a
    forward. Without a pipeline level 3 has no copy of all.
    """
    shard = settings.dp_shard
    owned = trainable if settings.zero == 0 else -(-trainable // shard)
    optimizer = settings.update.moment_bytes(owned)
    if settings.zero <= 1:
        size = settings.itemsize
        optimizer += settings.update.master_bytes(owned, size)
        return numel * size, trainable * size, optimizer, 0
    gradients = trainable * 4 if settings.pipelined else -(-trainable * 4 // shard)
    keeps_gathered = settings.zero == 2 or settings.pipelined
    gathered = numel * settings.itemsize if keeps_gathered else 0
    return -(-numel * 4 // shard), gradients, optimizer, gathered


def unit_bytes(numel: int, settings: MemorySettings) -> int:
    """Bytes that exist while one FSDP unit of ``numel`` elements computes, besides `state_bytes`.

    Level 3 gathers the unit and prefetches the next; the unit's gradient exists once in the
    compute dtype and once in float32 while it is reduced. In a pipeline that is when the
    activations are gone.
    """
    if settings.zero <= 1:
        return 0
    if settings.pipelined:
        return numel * settings.itemsize * settings.host
    copies = 2 if settings.zero == 3 else 0
    return numel * (copies * settings.itemsize + settings.itemsize + 4)


def update_bytes(trainable: int, settings: MemorySettings) -> int:
    """Temporaries of the optimizer: at ZeRO 0 and 1, the gradient it reads, and a chunk's tensors.

    The runtime updates the elements that a rank owns as one tensor, or by chunks of it.
    """
    owned = trainable if settings.zero == 0 else -(-trainable // settings.dp_shard)
    laid_out = 0
    if settings.zero <= 1:
        laid_out = 4 if settings.update.master else settings.itemsize
    return owned * laid_out + settings.update.temporary_bytes(owned)


def stage_memory(
    blocks: Sequence[BlockMemory],
    settings: MemorySettings,
    *,
    in_flight: int,
    shared: int,
    resident: int,
    tied: int,
) -> StageMemory:
    """Memory of a stage that holds ``in_flight`` microbatches at once.

    torch's PipelineStage allocates what it receives (inputs, gradients of outputs) for every
    microbatch of the step, and keeps the outputs of those in flight, of which blocks may have a
    part already. ``shared`` is bytes of results of shared operators (masks, tables) of one
    microbatch, ``resident`` bytes of the model's buffers and the batch, ``tied`` the elements of
    parameters that several blocks of the stage use: FSDP2 keeps these gathered from the first use
    to the last.
    """
    numel = sum(block.numel for block in blocks)
    trainable = sum(block.trainable for block in blocks)
    parameters, gradients, optimizer, gathered = state_bytes(numel, trainable, settings)
    received = blocks[0].boundary_in if settings.pipelined and blocks else 0
    sent = blocks[-1].boundary_out if settings.pipelined and blocks else 0
    kept, known, held = _kept(blocks, received=received > 0)
    arrived = _arrived(blocks) if settings.pipelined and blocks else [0] * len(blocks)
    blocks = [_besides(*both) for both in zip(blocks, known, arrived, strict=True)]
    messages = SentMessages(sent, received, settings.host)
    buffers = shared * in_flight + resident + settings.microbatches * (received + sent)
    unkept = _unkept(blocks, held, sent)
    if settings.zero >= 2 and settings.pipelined and blocks:
        units = _units(blocks, kept, arrived, settings)
        stage = ShardedStage(
            units=units,
            reshards=settings.zero == 3,
            narrow=settings.itemsize < 4,
            host=settings.host,
            in_flight=in_flight,
            microbatches=settings.microbatches,
            sent=unkept,
            messages=messages,
        )
        moment = max(
            stage.fullest(),
            # The update begins when everything else is gone.
            Moment(0, 0, -(-trainable * 4 // settings.dp_shard), update_bytes(trainable, settings)),
            key=lambda moment: moment.total,
        )
        rest = tied * settings.itemsize if settings.zero == 3 else 0
        return StageMemory(
            parameters=parameters,
            gradients=moment.gradients,
            optimizer=optimizer,
            activations=moment.activations,
            transient=moment.transient,
            buffers=buffers + moment.gathered + rest,
        )
    buckets = bucket_bytes(trainable, settings)
    buffers += gathered + buckets + in_flight * unkept
    if settings.zero >= 2 and not gathered:
        buffers += tied * settings.itemsize
    activations = sum(kept) * in_flight
    peak = max(
        sum(kept) * (flight - 1)
        + left
        - unkept * (in_flight - flight)
        + _pass_peak(blocks, kept, settings, tied, born=born)
        for flight, born, left in _backwards(settings, in_flight, messages)
    )
    # The update begins when the activations are gone.
    transient = max(peak - activations, update_bytes(trainable, settings) - activations - buckets)
    return StageMemory(
        parameters=parameters,
        # Less those that don't exist yet when most is held.
        gradients=gradients + min(0, transient),
        optimizer=optimizer,
        activations=activations,
        transient=max(0, transient),
        buffers=buffers,
    )


def stage_pass(blocks: Sequence[BlockMemory], settings: MemorySettings) -> StagePass:
    """What a microbatch holds in a stage of those blocks."""
    received, sent = blocks[0].boundary_in, blocks[-1].boundary_out
    kept, known, held = _kept(blocks, received=received > 0)
    arrived = _arrived(blocks)
    blocks = [_besides(*both) for both in zip(blocks, known, arrived, strict=True)]
    return StagePass(
        numel=sum(block.numel for block in blocks),
        trainable=sum(block.trainable for block in blocks),
        kept=sum(kept),
        unkept=_unkept(blocks, held, sent),
        forward=max(
            so_far + block.forward
            for so_far, block in zip(itertools.accumulate(kept), blocks, strict=True)
        ),
        backward=_pass_peak(blocks, kept, settings, 0, born=False),
        first=_pass_peak(blocks, kept, settings, 0, born=True),
        received=received,
        sent=sent,
    )


def _besides(block: BlockMemory, known: int, arrived: int) -> BlockMemory:
    """A block whose temporaries are without those that exist already.

    ``known`` is bytes of its inputs that its stage holds, ``arrived`` as `_arrived` says.
    """
    if not known and not arrived:
        return block
    return replace(
        block,
        forward=max(0, block.forward - known),
        working=max(0, block.working - arrived),
        fresh=max(0, block.fresh - arrived),
    )


def _units(
    blocks: Sequence[BlockMemory],
    kept: Sequence[int],
    arrived: Sequence[int],
    settings: MemorySettings,
) -> list[Unit]:
    """Blocks of a pipelined stage as FSDP2's units; ``arrived`` as `_arrived` says."""
    shard, size = settings.dp_shard, settings.itemsize
    return [
        Unit(
            whole=block.numel * size,
            flat=-(-block.numel * size // shard) if size < 4 else 0,
            gradients=block.trainable * 4,
            born=block.trainable * size,
            largest=block.largest * 4,
            shard=-(-block.trainable * 4 // shard),
            kept=own,
            forward=block.forward,
            working=block.working,
            fresh=block.fresh,
            arriving=sum(block.outputs) - there,
        )
        for block, own, there in zip(blocks, kept, arrived, strict=True)
    ]


def _unkept(blocks: Sequence[BlockMemory], held: Sequence[bool], sent: int) -> int:
    """Bytes that a stage sends of a microbatch beyond those that its blocks keep."""
    if not sent:
        return 0
    both = zip(blocks[-1].outputs, held, strict=True)
    return sent - sum(size for size, kept in both if kept)


def bucket_bytes(trainable: int, settings: MemorySettings) -> int:
    """Bytes of DDP's buckets beside the gradients that microbatches before the last left."""
    besides = settings.zero <= 1 and settings.replicated and settings.microbatches > 1
    return trainable * settings.itemsize if besides else 0


def _kept(
    blocks: Sequence[BlockMemory], *, received: bool
) -> tuple[list[int], list[int], tuple[bool, ...]]:
    """Bytes that each block keeps besides what those before it keep, and of inputs that these do.

    Of the latter only what the block itself doesn't keep; last, which outputs are kept.
    What a stage has ``received`` is in its buffers.
    """
    added, known = [], []
    held = tuple(received for _ in blocks[0].inputs) if blocks else ()
    for block in blocks:
        # The first block of a model reads nothing from a block.
        before = held if len(held) == len(block.inputs) else (False,) * len(block.inputs)
        twice = sum(
            size
            for size, kept, already in zip(block.inputs, block.kept_inputs, before, strict=True)
            if kept and already
        )
        added.append(block.kept - twice)
        known.append(sum(itertools.compress(block.inputs, before)) - twice)
        held = tuple(
            kept or (source >= 0 and (before[source] or block.kept_inputs[source]))
            for kept, source in zip(block.kept_outputs, block.passed, strict=True)
        )
    return added, known, held


def _arrived(blocks: Sequence[BlockMemory]) -> list[int]:
    """Bytes of gradients that a block is handed as they came from the next stage, in its buffers.

    Those are of tensors that blocks in between pass on without reading them: where one is read
    too, the sum of its gradients is a new tensor.
    """
    found: list[int] = []
    alike = (True,) * len(blocks[-1].outputs) if blocks[-1].boundary_out else ()
    for block in reversed(blocks):
        # What no later block reads is not handed on.
        alike = alike if len(alike) == len(block.outputs) else (False,) * len(block.outputs)
        found.append(sum(itertools.compress(block.outputs, alike)))
        alike = tuple(
            not read and any(itertools.compress((source == i for source in block.passed), alike))
            for i, read in enumerate(block.read_inputs)
        )
    return found[::-1]


def born_late(settings: MemorySettings) -> bool:
    """Whether no gradient exists before the only backward of a step, in which activations end."""
    if settings.zero <= 1:
        return settings.microbatches == 1 and not settings.replicated
    return settings.microbatches == 1 and not settings.pipelined


def _backwards(
    settings: MemorySettings, in_flight: int, messages: SentMessages
) -> list[tuple[int, bool, int]]:
    """Backwards that may hold most: microbatches held, if no gradient exists before, bytes left.

    A step begins without gradients, unless they live in DDP's buckets. A later backward adds to
    them, and finds a microbatch fewer when all were held at once, and messages.
    """
    later = messages.later_backwards(in_flight, settings.microbatches)
    born = bool(later) or born_late(settings)
    return [(in_flight, born, 0), *((flight, False, left) for flight, left in later)]


def _pass_peak(
    blocks: Sequence[BlockMemory],
    kept: Sequence[int],
    settings: MemorySettings,
    tied: int,
    *,
    born: bool,
) -> int:
    """Most bytes besides the training state while a microbatch passes.

    Before a block's backward those after it have given up what they kept, and their gradients
    exist. If gradients are ``born``, those of this block and before are counted as missing.
    ``tied`` elements have a gradient from the last block to the first.
    """
    peak = held = missing = 0
    numel = [0, *(block.numel for block in blocks), 0]
    for index, block in enumerate(blocks):
        held += kept[index]
        fresh = max(block.forward, block.fresh)
        if born:
            missing += state_bytes(block.numel, block.trainable, settings)[1]
        if settings.zero <= 1:
            # What the block's own gradients take is in `fresh`.
            working = fresh - missing if born else max(block.forward, block.working)
            peak = max(peak, held + working)
        else:
            units = (numel[index], numel[index + 1], numel[index + 2])
            summed = tied * settings.itemsize if index + 1 < len(blocks) else 0
            added = held + summed - missing
            peak = max(peak, added + fresh + _gathered(units, settings))
            peak = max(peak, added - kept[index] + _reducing(units, settings))
    return peak


def _gathered(units: tuple[int, int, int], settings: MemorySettings) -> int:
    """Bytes of FSDP2 during a unit's backward, with the units before and after it.

    Level 3 holds the unit and the buffer in which the one before arrives. What the unit after
    handed to its reduction stays until the next one starts.
    """
    before, own, after = units
    copies = own + before if settings.zero == 3 else 0
    return copies * settings.itemsize + 4 * after


def _reducing(units: tuple[int, int, int], settings: MemorySettings) -> int:
    """Bytes of FSDP2 while a unit's gradients are copied together, reduced and scattered."""
    before, own, _ = units
    arriving = before * settings.itemsize if settings.zero == 3 else 0
    return arriving + own * (settings.itemsize + 4) + -(-own * 4 // settings.dp_shard)
