"""What each fixed decision costs: the search again, with that one left to the planner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from autoplan.solver.explore import Searcher
from autoplan.solver.pinned import pinned_problem, pinned_space
from autoplan.solver.pricing import Priced
from autoplan.solver.space import Pin, Pins
from autoplan.solver.timing import Simulator

__all__ = ["PinCost", "price_pins"]


@dataclass(frozen=True, slots=True)
class PinCost:
    """A pin, and the fastest plan found without it; the search of those ended, or was cut short.

    ``free`` is the pinned plan itself where no faster one was found, None without a search.
    """

    pin: Pin
    free: Priced | None
    proved: bool


def price_pins(
    searcher: Searcher,
    pins: Pins,
    best: Priced,
    simulator: Simulator,
    deadline: float,
    progress: Callable[[str], None] | None,
) -> list[PinCost]:
    """Each pin against the free choice, the others kept, in equal shares of the time left.

    ``best`` is the plan under all of them.
    """
    found: list[PinCost] = []
    each = pins.each()
    interrupted = False
    for index, pin in enumerate(each):
        left = deadline - time.monotonic()
        if left <= 0.0 or interrupted:
            found.append(PinCost(pin, None, False))
            continue
        if progress is not None:
            progress(f"without {pin.option}")
        freed = pins.without(pin)
        until = time.monotonic() + left / (len(each) - index)
        problem = pinned_problem(searcher.problem, freed, until)
        outcome = searcher.beside(problem).run(
            pinned_space(problem, freed), phase=f"without {pin.name}", known=best
        )
        interrupted = outcome.termination == "interrupted"
        free = simulator.fastest([best, *outcome.priced])
        if free.step_time >= simulator.timed(best).step_time:
            free = best
        found.append(PinCost(pin, free, outcome.termination == "optimal"))
    return found
