"""An order being written down, microbatches counted by stage."""

from __future__ import annotations

from collections import Counter, deque

from autoplan.schedules.action import Action, ActionKind, Overlapped, Step

__all__ = ["Tape"]


class Tape:
    """Steps of a rank; each call adds one, for the stage's next microbatch of that kind."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._forwards: Counter[int] = Counter()
        self._backwards: Counter[int] = Counter()
        self._pending: dict[int, deque[int]] = {}
        self._queue: deque[int] = deque()

    def forward(self, stage: int) -> None:
        """Add a forward."""
        self.steps.append(self._next(stage, ActionKind.FORWARD, self._forwards))

    def backward(self, stage: int) -> None:
        """Add a full backward."""
        self.steps.append(self._next(stage, ActionKind.BACKWARD, self._backwards))

    def overlapped(self, forward: int, backward: int) -> None:
        """Add a forward of one stage and a full backward of another as a pair."""
        self.steps.append(
            Overlapped(
                self._next(forward, ActionKind.FORWARD, self._forwards),
                self._next(backward, ActionKind.BACKWARD, self._backwards),
            )
        )

    def backward_input(self, stage: int) -> None:
        """Add a backward for the input; the one for the parameters then waits."""
        action = self._next(stage, ActionKind.BACKWARD_INPUT, self._backwards)
        self._pending.setdefault(stage, deque()).append(action.microbatch)
        self._queue.append(stage)
        self.steps.append(action)

    def backward_weight(self, stage: int) -> None:
        """Add the backward for the parameters that has waited longest on that stage."""
        self._queue.remove(stage)
        microbatch = self._pending[stage].popleft()
        self.steps.append(Action(stage, ActionKind.BACKWARD_WEIGHT, microbatch))

    def oldest_backward_weight(self) -> None:
        """Add the one that has waited longest on any stage, if one waits."""
        if self._queue:
            self.backward_weight(self._queue[0])

    def waiting(self, stage: int) -> int:
        """Backwards for the parameters of a stage that wait."""
        return len(self._pending.get(stage, ()))

    @staticmethod
    def _next(stage: int, kind: ActionKind, counts: Counter[int]) -> Action:
        counts[stage] += 1
        return Action(stage, kind, counts[stage] - 1)
