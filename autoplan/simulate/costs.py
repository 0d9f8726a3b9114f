"""What the simulator is told about a step: seconds of work, and how data parallelism is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autoplan.errors import UsageError
from autoplan.schedules import ActionKind

__all__ = [
    "DataParallel",
    "Gathering",
    "Messages",
    "Reduction",
    "StageCost",
    "Tail",
    "UnitCost",
    "Work",
    "stage_of_times",
    "work_of",
]


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of a unit's kernels in one action, and of tp, cp and ep collectives they wait for."""

    compute: float
    exposed: float = 0.0


def work_of(forward: Work, backward: Work) -> dict[ActionKind, Work]:
    """Work of a unit by kind of action; both parts of a split backward take half of the whole.

    That holds for matrix products, which compute two products of one size.
    """
    half = Work(backward.compute / 2, backward.exposed / 2)
    return {
        ActionKind.FORWARD: forward,
        ActionKind.BACKWARD: backward,
        ActionKind.BACKWARD_INPUT: half,
        ActionKind.BACKWARD_WEIGHT: half,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """A part of a stage whose parameters are gathered and whose gradients are reduced together.

    ``work`` is by kind of action, for one microbatch; ``gather`` and ``reduce`` are seconds of
    the all-gather of its parameters and of the reduction of its gradients, ``reduced`` the bytes
    of these where DDP reduces them in its own buckets.
    """

    work: Mapping[ActionKind, Work]
    gather: float = 0.0
    reduce: float = 0.0
    reduced: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """A stage: its units in forward order, and what its messages take.

    ``send_output`` is seconds to send a microbatch's output to the next stage,
    ``send_gradient`` that of its input's gradient to the one before. Neither is used where the
    other stage is on the same rank.
    """

    units: tuple[UnitCost, ...]
    send_output: float = 0.0
    send_gradient: float = 0.0


class Gathering(StrEnum):
    """When sharded parameters are gathered."""

    NEVER = "never"
    """They are not sharded."""
    FORWARD = "forward"
    """Before every forward, then kept for its backward (ZeRO-2 without a pipeline)."""
    STEP = "step"
    """Before their first forward of the step, then kept (ZeRO-2 in a pipeline)."""
    ACTION = "action"
    """Before every action on the unit, one unit ahead (ZeRO-3)."""
    TURN = "turn"
    """Before every action except after a backward, which leaves them gathered (ZeRO-3 in torch's
    schedules of one stage a rank: ``m + 1`` gathers for m microbatches)."""
    WINDOW = "window"
    """By stages, while among the next few that the rank works on (torch's pipeline runtime)."""


class Reduction(StrEnum):
    """When gradients are reduced over the data-parallel ranks."""

    EACH = "each"
    """After a unit's backward of every microbatch."""
    LAST = "last"
    """After a unit's backward of the last microbatch, beside the backward of the next unit.

    Where units tell their bytes, in DDP's buckets: see `autoplan.ir.buckets`.
    """
    STAGE = "stage"
    """After the whole stage's last backward (torch's pipeline runtime with FSDP2)."""


class Messages(StrEnum):
    """What waits while results travel between ranks."""

    BESIDE = "beside"
    """Nobody before it needs the result (torch's runtime for several stages a rank)."""
    AWAITED = "awaited"
    """Both ranks, as in torch's GPipe and 1F1B: see ``autoplan.simulate.rendezvous``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How gathers and reductions are run: one stream a rank, in order, beside compute.

    While both run, compute takes ``compute_slow_down`` times as long and the collective
    ``network_slow_down`` times; what is left of either then goes on at full speed. Where the
    inverses of the two add up to less than 1, overlapping is worse than taking turns, and then
    (only then) longer work may shorten a step, by ending an overlap.

    ``window`` is the number of stages gathered at once under ``Gathering.WINDOW``.
    ``joined`` tells that a forward's first gather starts with it, and that it waits for the
    reductions before it, as FSDP2 modules do. ``blocking`` tells that every gather and reduction
    is waited for as soon as it is issued, as FSDP2 modules do on a device without streams.
    ``pairs_side_by_side`` tells that the program runs the two actions of a pair at the same time,
    which torch alone does not.
    """

    gathering: Gathering = Gathering.NEVER
    reduction: Reduction = Reduction.LAST
    compute_slow_down: float = 1.0
    network_slow_down: float = 1.0
    window: int = 3
    joined: bool = False
    blocking: bool = False
    pairs_side_by_side: bool = False

    def __post_init__(self) -> None:
        for name in ("compute_slow_down", "network_slow_down"):
            if getattr(self, name) < 1.0:
                raise UsageError(
                    f"{name} is {getattr(self, name)}: overlapping never speeds up",
                    hint="give a factor of at least 1, as a profile of both streams measures it",
                )
        if self.window < 1:
            raise UsageError(
                f"window is {self.window} stages",
                hint="a rank works on one stage at a time: use a window of at least 1",
            )

    @property
    def slows(self) -> bool:
        """Whether the streams slow each other down."""
        return self.compute_slow_down != 1.0 or self.network_slow_down != 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Seconds of a rank once a step: collectives after its last gradient, update, publication.

    The update starts when all ranks have their gradients, as clipping by the global norm asks.
    ``publish`` is the all-gather of updated parameters (ZeRO-1).
    """

    collectives: float = 0.0
    optimizer: float = 0.0
    publish: float = 0.0


def stage_of_times(
    forward: float,
    backward: float,
    *,
    backward_input: float | None = None,
    send_output: float = 0.0,
    send_gradient: float = 0.0,
) -> StageCost:
    """Stage of one unit: seconds of a forward and of a full backward.

    ``backward_input`` is the part of the backward that gives the input's gradient; half if not
    given, which holds for matrix products.
    """
    first = backward / 2 if backward_input is None else backward_input
    work = {
        ActionKind.FORWARD: Work(forward),
        ActionKind.BACKWARD: Work(backward),
        ActionKind.BACKWARD_INPUT: Work(first),
        ActionKind.BACKWARD_WEIGHT: Work(backward - first),
    }
    return StageCost(
        units=(UnitCost(work=work),),
        send_output=send_output,
        send_gradient=send_gradient,
    )
