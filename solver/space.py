"""The outer search space: every legal combination of degrees, microbatch and policies.

``world = pp * dp_replicate * dp_shard * tp``. ZeRO 0 replicates over ``dp_replicate``; ZeRO 1
shards the optimizer over ``dp_shard``; ZeRO 2 and 3 shard over ``dp_shard`` and may replicate
over ``dp_replicate`` (hybrid sharding). ZeRO 3 inside a pipeline gathers ``m + 1`` times as
often as ZeRO 2 and needs little less memory (`costs.sharded`): it is left out unless asked for.

Schedules of several stages a rank are run with whole parameters only: torch gathers and lets go of
sharded ones by stage there, which no price has. Of these, interleaved 1F1B is searched; the others
are what a pin asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplan.costs.data_parallel import AS_PLANNED, AT_THE_END, GradientSync
from autoplan.costs.memory import MemorySettings
from autoplan.errors import UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.levels import levels_text
from autoplan.ir.mesh import Mesh
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.recompute import Recompute, recompute_levels
from autoplan.schedules import (
    ONE_STAGE,
    SCHEDULES,
    SPLIT,
    check,
    is_legal,
    ranks_of_stages,
    stage_flights,
)
from autoplan.solver.placement_pins import PlacementPin
from autoplan.solver.stage_pins import stages_text
from autoplan.solver.sweep import Ranges

__all__ = [
    "PIN_NAMES",
    "Configuration",
    "Pin",
    "Pins",
    "configurations",
    "divisors",
    "parse_pins",
    "permitted_levels",
]

PIN_NAMES = (
    "pp",
    "dp_replicate",
    "dp_shard",
    "tp",
    "micro_batch_size",
    "zero",
    "recompute",
    "schedule",
    "virtual_stages",
)

_CHOICES = {
    "zero": ("0", "1", "2", "3"),
    "recompute": tuple(Recompute),
    "schedule": SCHEDULES,
}

_SEARCHED = ("1f1b", "gpipe", "interleaved1f1b")
"""Schedules that are considered unless pins say which."""

_LOOPS = (1, 2)
"""Stages a rank that are considered unless pins say how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One point of the outer space; recompute levels are chosen block by block.

    ``virtual_stages`` is the number of stages on each rank.
    """

    mesh: Mesh
    micro_batch_size: int
    microbatches: int
    zero: int
    schedule: str
    virtual_stages: int = 1
    sync: GradientSync = AS_PLANNED

    @property
    def pipelined(self) -> bool:
        """Whether there is more than one stage."""
        return self.mesh.pp > 1

    @property
    def stages(self) -> int:
        """Stages that the model is cut into."""
        return self.mesh.pp * self.virtual_stages

    @property
    def looped(self) -> bool:
        """Whether torch runs the schedule by lists of actions, as those of several stages a rank.

        Messages then travel beside kernels.
        """
        return self.pipelined and self.schedule not in ONE_STAGE

    @property
    def ranks_of_stages(self) -> tuple[int, ...]:
        """Pipeline rank of each stage."""
        if not self.pipelined:
            return (0,)
        return ranks_of_stages(self.schedule, self.mesh.pp, self.virtual_stages)

    def flights(self) -> list[int]:
        """Most microbatches that each stage holds at once."""
        if not self.pipelined:
            return [1]
        return list(
            stage_flights(self.schedule, self.mesh.pp, self.microbatches, self.virtual_stages)
        )

    def memory_settings(
        self, itemsize: int, *, update: UpdateRule, host: bool = False
    ) -> MemorySettings:
        """What sets the bytes of a parameter; ``itemsize`` is that of the compute dtype.

        Without ``host`` it is that of accelerators, which need less.
        """
        return MemorySettings(
            zero=self.zero,
            dp_shard=self.mesh.dp_shard,
            itemsize=itemsize,
            update=update,
            pipelined=self.pipelined,
            microbatches=self.microbatches,
            replicated=self.mesh.dp > 1,
            host=host,
        )

    def gradient_bytes(self, itemsize: int) -> float:
        """Bytes of a parameter's gradient on a rank when the step's microbatches are done."""
        return 4 / self.mesh.dp_shard if self.zero >= 2 else float(itemsize)

    def label(self, levels: Sequence[Recompute] = ()) -> str:
        """Short text for reports; ``levels`` are those of recompute by block, where they differ."""
        axes = [f"{axis} {degree}" for axis, degree in self.mesh.degrees().items() if degree > 1]
        parts = [" x ".join(axes) or "1 rank", f"mbs {self.micro_batch_size}"]
        if self.mesh.dp > 1:
            parts.append(f"zero {self.zero}")
        recompute = levels_text(levels)
        if recompute != Recompute.NONE:
            parts.append(f"recompute {recompute}")
        if self.pipelined:
            each = f" x {self.virtual_stages}" if self.virtual_stages > 1 else ""
            parts.append(self.schedule + each)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Pin:
    """One decision fixed by the user, and the option that fixed it."""

    name: str
    value: str
    option: str


@dataclass(frozen=True, slots=True)
class Pins:
    """Decisions fixed by the user: allowed values by name, placements, blocks of each stage."""

    allowed: Mapping[str, tuple[str, ...]]
    placements: tuple[PlacementPin, ...] = ()
    stages: Ranges = ()

    def permits(self, name: str, value: int | str) -> bool:
        """Whether ``value`` is allowed for that decision."""
        if self.stages and value != {"pp": len(self.stages), "virtual_stages": 1}.get(name, value):
            return False
        values = self.allowed.get(name)
        return values is None or str(value) in values

    def each(self) -> tuple[Pin, ...]:
        """The decisions, one by one."""
        values = {name: ",".join(values) for name, values in self.allowed.items()}
        found = [Pin(name, value, f"{_flag(name)} {value}") for name, value in values.items()]
        if self.stages:
            text = stages_text(self.stages)
            found.append(Pin("stages", text, f"--stages {text}"))
        found += [Pin(p.pattern, str(p.placement), f"--pin {p}") for p in self.placements]
        return tuple(found)

    def without(self, pin: Pin) -> Pins:
        """The others."""
        return Pins(
            {name: values for name, values in self.allowed.items() if name != pin.name},
            tuple(p for p in self.placements if p.pattern != pin.name),
            () if pin.name == "stages" else self.stages,
        )

    def __contains__(self, name: str) -> bool:
        return name in self.allowed


def parse_pins(pins: Mapping[str, str], ranks: int, global_batch: int) -> Pins:
    """Pins from text (``"8"``, ``"1,2,4"``, ``"auto"``); UsageError when one can't hold."""
    allowed: dict[str, tuple[str, ...]] = {}
    for name, text in pins.items():
        if name not in PIN_NAMES:
            raise UsageError(f"unknown pin {name!r}", hint=f"one of: {', '.join(PIN_NAMES)}")
        if text == "auto":
            continue
        values = tuple(part.strip().lower() for part in text.split(","))
        if name in _CHOICES:
            for value in values:
                if value not in _CHOICES[name]:
                    raise UsageError(
                        f"{_flag(name)} {value!r} is unknown",
                        hint=f"one of: {', '.join(_CHOICES[name])}",
                    )
        else:
            values = tuple(str(_positive(name, value)) for value in values)
            if name != "virtual_stages":
                _check_divides(name, values, ranks, global_batch)
        allowed[name] = values
    parsed = Pins(allowed)
    _check_product(parsed, ranks)
    _check_schedules(parsed)
    return parsed


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"{_flag(name)} takes a positive whole number, a comma list of them, or auto; "
            f"got {text!r}"
        )
    return int(text)


def _check_divides(name: str, values: tuple[str, ...], ranks: int, global_batch: int) -> None:
    whole, what = (
        (global_batch, "the global batch")
        if name == "micro_batch_size"
        else (ranks, "the cluster's ranks")
    )
    if any(whole % int(value) == 0 for value in values):
        return
    legal = [d for d in divisors(whole)]
    near = min(legal, key=lambda d: abs(d - int(values[0])))
    raise UsageError(
        f"{_flag(name)} {','.join(values)} does not divide {what} ({whole})",
        hint=f"nearest legal value: {_flag(name)} {near}",
    )


def _check_product(pins: Pins, ranks: int) -> None:
    fixed = {n: pins.allowed[n] for n in ("pp", "dp_replicate", "dp_shard", "tp") if n in pins}
    product = 1
    for values in fixed.values():
        if len(values) > 1:
            return
        product *= int(values[0])
    named = " x ".join(f"{_flag(n)} {v[0]}" for n, v in fixed.items())
    if ranks % product:
        raise UsageError(
            f"{named} = {product} ranks does not divide the cluster's {ranks}",
            hint=f"their product must divide {ranks}",
        )
    if len(fixed) == 4 and product != ranks:
        raise UsageError(
            f"{named} = {product} ranks, but the cluster has {ranks}",
            hint=f"leave one of them to the planner, or make the product {ranks}",
        )


def _check_schedules(pins: Pins) -> None:
    """Refuse schedules that can't run with the pinned stages a rank or ZeRO levels."""
    schedules = pins.allowed.get("schedule", _SEARCHED)
    pinned = [int(v) for v in pins.allowed.get("virtual_stages", ())]
    # Two microbatches on one rank are enough for all: only the stages may be wrong.
    if pinned and not any(is_legal(name, 1, 2, v) for name in schedules for v in pinned):
        check(schedules[0], 1, 2, pinned[0])
    looped = [name not in ONE_STAGE for name in schedules]
    several = all(looped) or (pinned and min(pinned) > 1)
    if several and all(int(level) >= 2 for level in pins.allowed.get("zero", "0")):
        raise UsageError(
            f"--zero {','.join(pins.allowed['zero'])} shards parameters, which schedules of "
            "several stages a rank are not run with",
            hint="--zero 0 or 1, or --schedule 1f1b or gpipe",
        )


def divisors(number: int) -> list[int]:
    """Divisors in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def permitted_levels(graph: Graph, pins: Pins) -> tuple[Recompute, ...]:
    """Recompute levels that a model can run at and the pins allow, the least first."""
    return tuple(v for v in recompute_levels(graph) if pins.permits("recompute", v))


def configurations(
    *,
    ranks: int,
    global_batch: int,
    max_stages: int,
    pins: Pins,
) -> Iterator[Configuration]:
    """Every legal configuration, in a fixed order."""
    for mesh in _meshes(ranks, max_stages, pins):
        if global_batch % mesh.dp:
            continue
        per_rank = global_batch // mesh.dp
        for zero in _zero_levels(mesh, pins):
            for size in divisors(per_rank):
                if not pins.permits("micro_batch_size", size):
                    continue
                for schedule, each in _schedules(mesh, per_rank // size, max_stages, pins):
                    if zero >= 2 and mesh.pp > 1 and schedule not in ONE_STAGE:
                        continue
                    yield Configuration(
                        mesh=mesh,
                        micro_batch_size=size,
                        microbatches=per_rank // size,
                        zero=zero,
                        schedule=schedule,
                        virtual_stages=each,
                        sync=AT_THE_END if schedule in SPLIT else AS_PLANNED,
                    )


def _meshes(ranks: int, max_stages: int, pins: Pins) -> Iterator[Mesh]:
    for tp in divisors(ranks):
        if not pins.permits("tp", tp):
            continue
        for pp in divisors(ranks // tp):
            if pp > max_stages or not pins.permits("pp", pp):
                continue
            dp = ranks // tp // pp
            for shard in divisors(dp):
                mesh = Mesh(pp=pp, dp_replicate=dp // shard, dp_shard=shard, tp=tp)
                if pins.permits("dp_shard", shard) and pins.permits(
                    "dp_replicate", mesh.dp_replicate
                ):
                    yield mesh


def _zero_levels(mesh: Mesh, pins: Pins) -> Iterator[int]:
    levels = [0] if mesh.dp_shard == 1 else [1, 2, 3]
    for level in levels:
        if not pins.permits("zero", level):
            continue
        if level == 1 and mesh.dp_replicate > 1:
            continue
        if level == 3 and mesh.pp > 1 and "zero" not in pins:
            continue
        yield level


def _schedules(
    mesh: Mesh, microbatches: int, max_stages: int, pins: Pins
) -> Iterator[tuple[str, int]]:
    """Schedules and stages a rank."""
    if mesh.pp == 1:
        # A pin of either asks for a pipeline: nothing else can honour it.
        if "schedule" not in pins and pins.permits("virtual_stages", 1):
            yield "none", 1
        return
    counts = [int(v) for v in pins.allowed.get("virtual_stages", ())] or _LOOPS
    for schedule in pins.allowed.get("schedule", _SEARCHED):
        for each in counts:
            # On one stage a rank interleaved 1F1B is 1F1B with longer warm-ups.
            alone = each == 1 and schedule not in (*ONE_STAGE, "interleavedzerobubble")
            if alone and "virtual_stages" not in pins:
                continue
            fits = each * mesh.pp <= max_stages and pins.permits("virtual_stages", each)
            if fits and is_legal(schedule, mesh.pp, microbatches, each):
                yield schedule, each
