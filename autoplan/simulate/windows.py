"""Which stages a rank gathers when, if it holds a window of the next few stages gathered.

This is how torch's pipeline runtime unshards stages of FSDP2 modules: those that the rank works
on next, in order of their next use; a stage that is not among them is resharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoplan.schedules import Step, single_actions

__all__ = ["windows"]


def windows(steps: Sequence[Step], size: int) -> Iterator[tuple[int, ...]]:
    """Stages to gather before each step, so that the next ``size`` stages are.

    >>> from autoplan.schedules import order
    >>> [stages for stages in windows(order("loopedbfs", 0, 1, 2, 3), 2) if stages]
    [(0, 1), (2,), (0,)]
    """
    upcoming: list[int] = []
    wanted: list[tuple[int, ...]] = []
    for step in reversed(steps):
        stages = [action.stage for action in single_actions((step,))]
        upcoming = stages + [stage for stage in upcoming if stage not in stages]
        # A pair works on both of its stages, however small the window.
        wanted.append(tuple(upcoming[: max(size, len(stages))]))
    gathered: tuple[int, ...] = ()
    for window in reversed(wanted):
        yield tuple(stage for stage in window if stage not in gathered)
        gathered = window
