"""Bytes on a rank of a pipeline stage.

Training state by dtype and ZeRO level (``d`` = dp_shard, ``c`` = bytes of the compute dtype):

=====  ==========  =============================  =========================
ZeRO   parameters  gradients                      optimizer (AdamW)
=====  ==========  =============================  =========================
0      c           c                              8 (+ 4 master if c < 4)
1      c           c                              the same / d
2, 3   4 / d       4 / d, or 4 while accumulated  8 / d
=====  ==========  =============================  =========================

With FSDP2 (2, 3) the gathered parameters come on top: all of the stage's at level 2, two
units (one computing, one prefetched) at level 3. In a pipeline the gradients of all
microbatches accumulate unsharded and gathered parameters stay until the step ends, which is
what torch's pipelining does with FSDP2. The limit of a plan applies to the sum of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BlockMemory",
    "MemorySettings",
    "StageMemory",
    "boundary_bytes",
    "stage_memory",
    "state_bytes",
    "unit_bytes",
    "update_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """What one block instance adds to a stage: local element counts and bytes.

    ``numel`` excludes parameters that an earlier block of the same stage already holds.
    ``kept`` is bytes held from forward to backward of one microbatch; ``working`` the
    largest temporary of its forward, backward or recompute.
    """

    numel: int
    trainable: int
    kept: int
    working: int
    boundary_in: int
    boundary_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Choices that set bytes for each parameter."""

    zero: int
    dp_shard: int
    itemsize: int
    adam: bool
    pipelined: bool
    microbatches: int


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


def state_bytes(numel: int, trainable: int, settings: MemorySettings) -> tuple[int, int, int, int]:
    """Bytes of (parameters, gradients, optimizer state, gathered copies kept all step)."""
    shard = settings.dp_shard
    moments = 8 if settings.adam else 0
    if settings.zero <= 1:
        master = 4 if settings.itemsize < 4 else 0
        optimizer = trainable * (moments + master)
        if settings.zero == 1:
            optimizer = -(-optimizer // shard)
        size = settings.itemsize
        return numel * size, trainable * size, optimizer, 0
    accumulated = settings.pipelined and settings.microbatches > 1
    gradients = trainable * 4 if accumulated else -(-trainable * 4 // shard)
    keeps_gathered = settings.zero == 2 or settings.pipelined
    gathered = numel * settings.itemsize if keeps_gathered else 0
    return -(-numel * 4 // shard), gradients, -(-trainable * moments // shard), gathered


def unit_bytes(numel: int, settings: MemorySettings) -> int:
    """Bytes that exist while one FSDP unit of ``numel`` elements computes.

    Level 3 gathers the unit and prefetches the next; the unit's gradient exists once in the
    compute dtype and once in float32 while it is reduced.
    """
    if settings.zero <= 1:
        return 0
    copies = 2 if settings.zero == 3 and not settings.pipelined else 0
    return numel * (copies * settings.itemsize + settings.itemsize + 4)


def update_bytes(trainable: int, settings: MemorySettings) -> int:
    """Temporaries of the optimizer: at ZeRO 0 and 1, the gradient it reads, in float32.

    The runtime updates the float32 elements that a rank owns as one tensor.
    """
    if settings.zero >= 2:
        return 0
    return 4 * (trainable if settings.zero == 0 else -(-trainable // settings.dp_shard))


def boundary_bytes(received: int, sent: int, in_flight: int, microbatches: int) -> int:
    """Bytes at the ends of a pipeline stage, whose neighbours hand on that many bytes.

    torch's PipelineStage allocates what it receives (inputs, gradients of outputs) for every
    microbatch of the step, and keeps the outputs of those in flight.
    """
    return microbatches * (received + sent) + in_flight * sent


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

    ``shared`` is bytes of results of shared operators (masks, tables) of one microbatch,
    ``resident`` bytes of the model's buffers, ``tied`` the elements of parameters that several
    blocks of the stage use: FSDP2 keeps these gathered from the first use to the last.
    """
    numel = sum(block.numel for block in blocks)
    trainable = sum(block.trainable for block in blocks)
    parameters, gradients, optimizer, gathered = state_bytes(numel, trainable, settings)
    kept = sum(block.kept for block in blocks)
    buffers = gathered + shared * in_flight + resident
    if settings.zero >= 2:
        held = settings.itemsize if gathered else 2 * settings.itemsize
        buffers += tied * held
    if settings.pipelined and blocks:
        received, sent = blocks[0].boundary_in, blocks[-1].boundary_out
        buffers += boundary_bytes(received, sent, in_flight, settings.microbatches)
    transient = max(
        (block.working + unit_bytes(block.numel, settings) for block in blocks), default=0
    )
    # The update begins when the activations are gone.
    transient = max(transient, update_bytes(trainable, settings) - kept * in_flight)
    return StageMemory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=kept * in_flight,
        transient=transient,
        buffers=buffers,
    )
