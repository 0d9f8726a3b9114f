"""Bytes on a rank of several pipeline stages, followed through the actions of its schedule.

Parameters are whole there (ZeRO 0 and 1). What torch 2.13's runtime of such schedules holds, by
the sources of ``pipelining/schedules.py`` and ``pipelining/stage.py``:

* for each stage, tensors for what it receives of every microbatch of the step;
* of a microbatch, what its blocks keep and what it sends, from forward to backward;
* of a backward in two parts, all of that until the second has ended, and the gradients that the
  first leaves for it, which are taken to be as large as what the blocks keep;
* on hosts everything sent until the step ends, as the handles of all messages are waited for then.

Gradients of a stage exist from its first backward on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoplan.costs.memory import (
    MemorySettings,
    StageMemory,
    StagePass,
    bucket_bytes,
    state_bytes,
    update_bytes,
)
from autoplan.schedules import Action, ActionKind, Step, single_actions

__all__ = ["rank_memory"]


def rank_memory(
    stages: Mapping[int, StagePass],
    steps: Iterable[Step],
    settings: MemorySettings,
    *,
    shared: int,
    resident: int,
) -> StageMemory:
    """Memory of a rank that holds ``stages`` (by number) and runs ``steps``.

    ``shared`` and ``resident`` are as in `stage_memory`.
    """
    trainable = sum(stage.trainable for stage in stages.values())
    numel = sum(stage.numel for stage in stages.values())
    parameters, gradients, optimizer, _ = state_bytes(numel, trainable, settings)
    buckets = bucket_bytes(trainable, settings)
    walk = _Walk(stages, settings, shared)
    for action in single_actions(steps):
        walk.run(action)
    # The update begins when the activations are gone.
    held, peak = max(
        (walk.held_at_peak, walk.peak),
        (0, update_bytes(trainable, settings) - buckets),
        key=lambda moment: moment[1],
    )
    transient = peak - held
    messages = sum(stage.received + stage.sent for stage in stages.values())
    return StageMemory(
        parameters=parameters,
        # Less those that don't exist yet when most is held.
        gradients=gradients + min(0, transient),
        optimizer=optimizer,
        activations=held,
        transient=max(0, transient),
        buffers=resident + buckets + settings.microbatches * messages,
    )


class _Walk:
    """Bytes held beside the training state, all gradients of which are counted as there."""

    def __init__(
        self, stages: Mapping[int, StagePass], settings: MemorySettings, shared: int
    ) -> None:
        self.peak = self.held_at_peak = 0
        self._stages, self._shared, self._host = stages, shared, settings.host
        self._held = 0
        # With one microbatch the gradients are in DDP's buckets from the start.
        alive = settings.replicated and settings.microbatches == 1
        self._unborn = {
            number: 0 if alive else state_bytes(stage.numel, stage.trainable, settings)[1]
            for number, stage in stages.items()
        }

    def run(self, action: Action) -> None:
        """Follow one action."""
        stage = self._stages[action.stage]
        both = stage.kept + stage.unkept + self._shared
        match action.kind:
            case ActionKind.FORWARD:
                self._reach(stage.forward + self._shared)
                self._held += both
            case ActionKind.BACKWARD:
                self._reach(self._backward(action) - stage.kept)
                self._held += self._sent(action) - both
            case ActionKind.BACKWARD_INPUT:
                self._reach(self._backward(action) - stage.kept)
                self._held += stage.kept
            case ActionKind.BACKWARD_WEIGHT:
                self._reach(0)
                self._held += self._sent(action) - both - stage.kept

    def _backward(self, action: Action) -> int:
        """Bytes of a backward, its own gradients counted as there."""
        stage = self._stages[action.stage]
        return stage.first if self._unborn.pop(action.stage, 0) else stage.backward

    def _sent(self, action: Action) -> int:
        """Bytes that handles of a microbatch's messages still hold."""
        stage = self._stages[action.stage]
        return (stage.received + stage.sent) * self._host

    def _reach(self, added: int) -> None:
        seen = self._held + added - sum(self._unborn.values())
        if seen > self.peak:
            self.peak, self.held_at_peak = seen, self._held
