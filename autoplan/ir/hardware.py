"""Machines as the cost model sees them: accelerator, links, cluster. SI units."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autoplan.ir.overlap import NO_SLOW_DOWN, SlowDown

__all__ = [
    "Accelerator",
    "Cluster",
    "CollectiveCurve",
    "Curve",
    "HostConvolutions",
    "HostWork",
    "Level",
    "Link",
    "MatmulTiles",
    "MeasuredOperators",
    "NetworkLevel",
    "Provenance",
    "RecomputeWork",
    "Source",
    "UnitWork",
]


class Provenance(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    CATALOGUE = "catalogue"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of one number: the field it fills, what kind of number, and who says so."""

    field: str
    provenance: Provenance
    source: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Points ``(x, y)`` sorted by ``x``, interpolated linearly in log x, log y.

    Below the first point the value is the first ``y``; above the last it follows the
    slope of the last segment when ``extrapolate``, else stays at the last ``y``.
    """

    points: tuple[tuple[float, float], ...]
    extrapolate: bool = False

    def __call__(self, x: float) -> float:
        """Value at ``x``."""
        points = self.points
        if x <= points[0][0] or len(points) == 1:
            return points[0][1]
        index = bisect_right(points, x, key=lambda point: point[0])
        if index == len(points):
            if not self.extrapolate:
                return points[-1][1]
            index -= 1
        (x0, y0), (x1, y1) = points[index - 1], points[index]
        share = math.log(x / x0) / math.log(x1 / x0)
        return math.exp(math.log(y0) + share * math.log(y1 / y0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTiles:
    """Units that compute a tile of a product each, and seconds a tile takes on top of its FLOP."""

    multiprocessors: int
    overhead: float


class MeasuredOperators:
    """Seconds (forward, backward) of operators by `costs.signature`; equal only to itself."""

    def __init__(self, seconds: Mapping[str, tuple[float, float]]) -> None:
        self._seconds = dict(seconds)

    def find(self, signature: str) -> tuple[float, float] | None:
        """Seconds of an operator, or None where it was not measured."""
        return self._seconds.get(signature)

    def scaled(self, factor: float) -> MeasuredOperators:
        """Operators that take ``factor`` times as long."""
        return MeasuredOperators(
            {s: (f * factor, b * factor) for s, (f, b) in self._seconds.items()}
        )

    def __len__(self) -> int:
        return len(self._seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """Seconds that a rank itself works on something: ``fixed``, and by tensor and by byte."""

    fixed: float
    per_tensor: float
    per_byte: float

    def seconds(self, tensors: int, size: float) -> float:
        """Seconds for so many tensors with ``size`` bytes together; none for no tensor."""
        return self.fixed + tensors * self.per_tensor + size * self.per_byte if tensors else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWork:
    """What FSDP2 itself does on a rank, the collectives aside, for a unit of parameters.

    ``unpack`` is around a gather, ``pack`` around a reduction of gradients; bytes are those of
    the whole parameters in float32.
    """

    unpack: HostWork
    pack: HostWork


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeWork:
    """What torch's recompute adds to the passes of a block, for each operator and once.

    Seconds; running the operators again is no part of them.
    """

    forward: float = 0.0
    backward: float = 0.0
    block_forward: float = 0.0
    block_backward: float = 0.0

    def of(self, operators: int) -> tuple[float, float]:
        """Seconds of the forward and of the backward of a block of so many operators."""
        return (
            self.block_forward + operators * self.forward,
            self.block_backward + operators * self.backward,
        )


@dataclass(frozen=True, slots=True)
class HostConvolutions:
    """How a CPU convolves: float32 ``lanes`` of a vector register, ``threads`` of a rank."""

    lanes: int
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One rank's device.

    ``matmul_peak`` maps dtype to peak FLOP/s; ``matmul_efficiency`` maps the FLOP of one
    matmul to the fraction of the peak it reaches, and where ``matmul_tiles`` are known, only
    its best fraction counts (`costs.matmul`); ``attention_efficiency`` is that of fused
    attention. ``unaligned_matmul`` is the part of its rate that a matmul keeps whose rows don't
    begin at multiples of 16 bytes. ``memory_bandwidth`` is in bytes/s, ``memory_efficiency``
    maps the bytes an op moves to the fraction of it, ``update_efficiency`` those of updates in
    place, where they differ. ``kernel_latency`` is seconds a small op
    takes whatever its size; ``dispatch_latency`` is what the host needs to issue one operator,
    which hides behind the device's work unless that is shorter. ``reserved`` is bytes of
    ``memory`` that a training job can't use (context, allocator); ``fragmentation`` is the
    fraction of usable memory lost to fragmentation. ``slow_down`` is that of kernels and
    collectives at the same time. ``operators`` are those that were measured. ``synchronous`` tells
    that an operator is done when its call returns, so that the host can't issue a collective
    before the work in front of it is done. ``units`` is FSDP2's own work, where it was measured;
    ``recompute`` that of torch's recompute, by level.
    ``convolutions`` says what they copy where the rank is a CPU.
    ``compiled``: it runs what torch.compile makes of the blocks of a model.
    """

    name: str
    memory: int
    reserved: int
    fragmentation: float
    matmul_peak: tuple[tuple[str, float], ...]
    matmul_efficiency: Curve
    attention_efficiency: float
    memory_bandwidth: float
    memory_efficiency: Curve
    kernel_latency: float
    sources: tuple[Source, ...]
    dispatch_latency: float = 0.0
    unaligned_matmul: float = 1.0
    matmul_tiles: MatmulTiles | None = None
    update_efficiency: Curve | None = None
    operators: MeasuredOperators | None = None
    slow_down: SlowDown = NO_SLOW_DOWN
    synchronous: bool = False
    units: UnitWork | None = None
    recompute: Mapping[str, RecomputeWork] = field(default_factory=dict, hash=False)
    convolutions: HostConvolutions | None = None
    compiled: bool = False

    @property
    def usable_memory(self) -> int:
        """Bytes a plan may use on a rank."""
        return int((self.memory - self.reserved) * (1.0 - self.fragmentation))

    def peak(self, dtype: str) -> float:
        """Peak matmul FLOP/s in ``dtype``; KeyError when the device has no such rate."""
        return dict(self.matmul_peak)[dtype]


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """Measured seconds of one collective by payload bytes on ``ranks`` ranks."""

    kind: str
    ranks: int
    seconds: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One level of the network, per rank and direction: seconds a hop, bytes/s.

    ``efficiency`` maps the payload of a collective to the part of ``bandwidth`` it reaches.
    """

    name: str
    latency: float
    bandwidth: float
    sources: tuple[Source, ...]
    measured: tuple[CollectiveCurve, ...] = ()
    efficiency: Curve = Curve(((1.0, 1.0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Units of ``ranks`` neighbours that reach each other over ``link``.

    ``oversubscription`` is how many times the bandwidth of the ranks below exceeds what the
    level can carry, so that each rank has its link's bandwidth divided by it. No link of its
    own stands for the cluster's ``inter``: the ranks' adapters, one switch further.
    """

    ranks: int
    link: Link | None = None
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkLevel:
    """A `Level` as costs use it: bytes/s of a rank that are left, seconds a hop.

    Equal only to itself, so that what follows from a cluster's levels is found fast.
    """

    ranks: int
    link: Link
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``nodes`` x ``ranks_per_node`` equal accelerators on a network of nested levels.

    ``intra`` joins the ranks of a node, or of a ``domain`` larger than one; ``inter`` joins
    the rest, unless ``outer`` lists the levels beyond, from inside out, the last of which holds
    all ranks. ``levels`` is what follows from these. ``notes`` are doubts about its numbers that
    whoever reads a plan should know. ``uncorrected`` is the cluster before runs of a model
    corrected its numbers.
    """

    spec: str
    accelerator: Accelerator
    nodes: int
    ranks_per_node: int
    intra: Link
    inter: Link
    domain: int = 0
    outer: tuple[Level, ...] = ()
    notes: tuple[str, ...] = ()
    uncorrected: Cluster | None = None
    levels: tuple[NetworkLevel, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = Level(ranks=self.domain or self.ranks_per_node, link=self.intra)
        outer = self.outer or (Level(ranks=self.ranks),)
        levels = tuple(_resolve(level, self.inter) for level in (inner, *outer))
        object.__setattr__(self, "levels", levels)

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ranks in a unit of each level but the last, which holds all."""
        return tuple(level.ranks for level in self.levels[:-1])


def _resolve(level: Level, inter: Link) -> NetworkLevel:
    link = level.link or inter
    return NetworkLevel(
        ranks=level.ranks,
        link=link,
        bandwidth=link.bandwidth / level.oversubscription,
        latency=link.latency,
    )
