"""A plan to fall back on, found before the search proper: first what needs no program.

Without a model axis every operator has one strategy, so such configurations are priced at once.
Only when none of them fits is the axis tried, the smallest degrees first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoplan.errors import SolverLimitError
from autoplan.solver.pricing import Found, Priced
from autoplan.solver.space import Configuration

__all__ = ["FirstPlan"]

_LEAN = 3
_FAST = 6
_EVENTS = 1024  # microbatches through stages: more take long to simulate


@dataclass(slots=True)
class FirstPlan:
    """Looks for some plan that fits; ``deadline`` is a `time.monotonic` instant.

    ``memory`` and ``bound`` are lower bounds, asked for small microbatches only.
    """

    price: Callable[[Configuration], Found]
    memory: Callable[[Configuration], int]
    bound: Callable[[Configuration], float]
    memory_limit: int
    deadline: float
    best: Priced | None = None

    def find(self, configurations: Sequence[Configuration]) -> Priced | None:
        """A plan that fits: of the smallest degree of the model axis that has one."""
        try:
            for tp in sorted({configuration.mesh.tp for configuration in configurations}):
                if self.best is None:
                    self._try([c for c in configurations if c.mesh.tp == tp])
        except SolverLimitError:
            pass
        return self.best

    def _try(self, configurations: Sequence[Configuration]) -> None:
        """The leanest; where one fits, the most promising, then larger microbatches."""
        smallest: dict[tuple[object, ...], Configuration] = {}
        for configuration in sorted(configurations, key=_microbatch):
            if configuration.microbatches * configuration.stages <= _EVENTS:
                smallest.setdefault(_but_for_microbatch(configuration), configuration)
        small = [c for c in smallest.values() if self.memory(c) <= self.memory_limit]
        for configuration in sorted(small, key=self.memory)[:_LEAN]:
            self._price(configuration)
        if self.best is None:
            return
        for configuration in sorted(small, key=self.bound)[:_FAST]:
            self._price(configuration)
        chosen = self.best.configuration
        same = [c for c in configurations if _but_for_microbatch(c) == _but_for_microbatch(chosen)]
        for configuration in sorted(same, key=_microbatch):
            if configuration.micro_batch_size <= chosen.micro_batch_size:
                continue
            if not self._price(configuration):
                return

    def _price(self, configuration: Configuration) -> bool:
        """Whether that configuration is the best so far."""
        if time.monotonic() >= self.deadline:
            return False
        result = self.price(configuration)
        if not isinstance(result, Priced):
            return False
        if self.best is not None and result.step_time >= self.best.step_time:
            return False
        self.best = result
        return True


def _microbatch(configuration: Configuration) -> int:
    return configuration.micro_batch_size


def _but_for_microbatch(configuration: Configuration) -> tuple[object, ...]:
    return (
        configuration.mesh,
        configuration.zero,
        configuration.schedule,
        configuration.virtual_stages,
    )
