"""Why a plan is as it is: what was chosen, what it is made of, and what others would cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Alternative",
    "CollectiveTerm",
    "DegreeExplanation",
    "OperatorTerm",
    "PlacementExplanation",
    "WholePlan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTerm:
    """An operator of a block under its strategy: seconds of compute for one microbatch."""

    name: str
    target: str
    strategy: str
    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTerm:
    """A collective of the model axis: what it is for, whole bytes, and its seconds.

    ``when`` is ``forward`` or ``backward`` (of a microbatch) or ``step`` (once).
    """

    what: str
    kind: str
    when: str
    payload: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another choice for all copies of the block, the rest of the block solved anew for it.

    ``step_time`` and ``peak_memory`` (of the fullest rank) are those of the whole plan with it;
    ``fits`` says whether that is within the limit. ``changed`` are other parameters of the block
    that it would store otherwise, with their placements.
    """

    choice: str
    step_time: float
    peak_memory: int
    fits: bool
    changed: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementExplanation:
    """A parameter (by FQN) or an operator (by name) of one kind of block in a plan.

    ``chosen`` is its placement or strategy, ``pinned`` where the user fixed it; ``copies`` are the
    blocks that have the same. ``state`` is bytes on a rank of a parameter by part, empty for an
    operator. Of ``alternatives``, those that fit come first, the fastest of them being the
    runner-up; there is none where nothing else is legal.
    """

    kind: str
    name: str
    block: str
    copies: int
    ranks: int
    shape: tuple[int, ...]
    chosen: str
    pinned: bool
    operators: tuple[OperatorTerm, ...]
    collectives: tuple[CollectiveTerm, ...]
    state: tuple[tuple[str, int], ...]
    step_time: float
    peak_memory: int
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePlan:
    """A plan in short: seconds of a step by part, bytes of the fullest rank by part."""

    label: str
    step_time: float
    peak_memory: int
    time: tuple[tuple[str, float], ...]
    memory: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeExplanation:
    """A decision about the whole plan: ``chosen`` as asked for, or rejected.

    ``other`` is the best plan that has it where the plan does not, else the best that has not;
    None when no such plan is legal or was found in time, as ``reason`` says. ``needed`` is bytes
    a rank of the leanest where none fits (``other`` has its parts, and no step time), else 0.
    """

    name: str
    value: str
    chosen: bool
    plan: WholePlan
    other: WholePlan | None
    needed: int
    memory_limit: int
    reason: str
    proved: bool
