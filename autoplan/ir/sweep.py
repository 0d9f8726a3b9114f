"""The outcome of ``autoplan sweep``: what it varied, and what each point takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autoplan.ir.fields import DType, PlanRecord, Seconds, Text

__all__ = ["Objective", "PointRecord", "SweepRecord"]

Objective = Literal["step-time", "device-hours", "cost", "knee"]

Positive = Annotated[int, Field(ge=1)]


class PointRecord(PlanRecord):
    """One cluster, batch and memory limit, and its plan in numbers, or why it has none.

    ``status`` is ``solved``, ``infeasible`` (nothing fits), ``refused`` (no legal configuration),
    ``time_limit`` (its share of the time passed before any plan) or ``not_reached``. Numbers that
    only a plan has are None without one; ``needed`` and ``shortfall`` are bytes a rank where
    nothing fits. ``step_time`` is what a step is expected to take, runs and input considered.
    Costs are in the unit of the price. ``plan`` is the name of the plan's file, if written.
    """

    cluster: Text
    nodes: Positive
    ranks_per_node: Positive
    global_batch: Positive
    memory_limit: Positive
    status: Literal["solved", "infeasible", "refused", "time_limit", "not_reached"]
    message: Text = ""
    needed: int | None = None
    shortfall: int | None = None
    step_time: Seconds | None = None
    gap: float | None = None
    termination: Literal["optimal", "time_limit", "interrupted"] | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    device_seconds_per_sample: float | None = None
    device_seconds_per_token: float | None = None
    cost_per_sample: float | None = None
    cost_per_token: float | None = None
    mfu: float | None = None
    peak_memory: int | None = None
    label: Text = ""
    plan: Text = ""
    pareto: bool = False
    knee: bool = False
    chosen: bool = False

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node


class SweepRecord(PlanRecord):
    """A sweep; ``termination`` tells whether all points were reached.

    ``price_per_hour`` is that of one device, as given by the user.
    """

    schema_version: Literal[1] = 1
    kind: Literal["sweep"] = "sweep"
    autoplan_version: Text
    model: Text
    num_parameters: int
    accelerator: Text
    seq_len: int
    dtype: DType
    optimizer: Text
    pins: dict[Text, Text] = Field(default_factory=dict)
    objective: Objective
    price_per_hour: Annotated[float, Field(gt=0)] | None = None
    termination: Literal["complete", "time_limit", "interrupted"]
    provenance: dict[Text, int] = Field(default_factory=dict)
    points: tuple[PointRecord, ...]

    def varied(self) -> tuple[str, ...]:
        """What differs between points: ``ranks``, ``global_batch``, ``memory_limit``."""
        names = ("ranks", "global_batch", "memory_limit")
        return tuple(n for n in names if len({getattr(p, n) for p in self.points}) > 1)

    def the(self, mark: Literal["chosen", "knee"]) -> PointRecord | None:
        """The point with that mark, if there is one."""
        return next((point for point in self.points if getattr(point, mark)), None)
