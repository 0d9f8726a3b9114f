"""Bytes of FSDP2's units while the microbatches of a step pass a stage of a pipeline.

What torch 2.13 does, seen at its allocator and in the sources of ``_fsdp_param_group.py`` and
``pipelining/stage.py``. Of units 0 to n - 1, each a block:

* A forward gathers unit by unit into a buffer, from which the parameters are copied out. The buffer
  stays until the next unit's is filled. Level 3 lets go of a unit when its forward ends.
* A backward gathers a unit ahead: while one computes, the buffer of the one before it is there. The
  pipeline lets it keep what it gathered, so after a backward all units are there, and the next
  forward finds them. Level 2 gathers in the first forward only.
* Gradients are born unit by unit in the first backward and stay whole: the pipeline reduces none
  before its last backward has ended. Those of a narrower dtype become float32 when the unit's
  backward ends, so each backward makes them anew.
* Then unit after unit, the first one first, is let go, its gradients are copied into one tensor,
  and reduced into this rank's shard. That tensor stays until the next unit's reduction.

With microbatches in flight f of m, 1F1B and GPipe run a forward beside 0 to f - 1 others, the first
backward, with f < m a forward and a backward beside f - 1, and with f > 1 backwards after
backwards, beside f - 2. So no order is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Moment", "ShardedStage", "Unit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Bytes of a block whose parameters are gathered and reduced together.

    ``whole`` is its parameters gathered, in the compute dtype, ``flat`` this rank's part of them if
    that must be converted first. ``gradients`` are float32, whole, ``shard`` this rank's part of
    them, ``largest`` those of one parameter, ``born`` all in the dtype that a backward makes them
    in. ``kept`` is from forward to backward of a microbatch; ``forward``, ``working`` and
    ``fresh`` are as in `BlockMemory`. ``arriving`` is the gradient of what the block hands on.
    """

    whole: int
    flat: int
    gradients: int
    shard: int
    born: int
    largest: int
    kept: int
    forward: int
    working: int
    fresh: int
    arriving: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes at an instant of a step, beside the shards of parameters and of their moments."""

    activations: int
    gathered: int
    gradients: int
    transient: int

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.activations + self.gathered + self.gradients + self.transient


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStage:
    """Units of a stage in forward order, and how they are run.

    ``reshards``: level 3, which lets go of units after their forward. ``narrow``: gradients are
    born in less than float32. ``host`` is as in `MemorySettings`. ``sent`` is bytes of the outputs
    of one microbatch that no block keeps.
    """

    units: Sequence[Unit]
    reshards: bool
    narrow: bool
    host: bool
    in_flight: int
    microbatches: int
    sent: int

    def fullest(self) -> Moment:
        """The moment of a step at which most is held."""
        return max(self.moments(), key=lambda moment: moment.total)

    def moments(self) -> Iterator[Moment]:
        """Every moment at which most may be held, in an order of their own."""
        flight = self.in_flight
        yield from self._forward(0, gathers=True, born=False)
        if flight > 1:
            yield from self._forward(flight - 1, gathers=self.reshards, born=False)
        yield from self._backward(flight, gathers=self.reshards, first=True)
        if flight < self.microbatches:
            yield from self._forward(flight - 1, gathers=False, born=True)
            yield from self._backward(flight, gathers=self.reshards, first=False)
        if flight > 1:
            yield from self._backward(flight - 1, gathers=False, first=False)
        yield from self._reduction()

    @property
    def _microbatch(self) -> int:
        return sum(unit.kept for unit in self.units) + self.sent

    @property
    def _whole(self) -> int:
        return sum(unit.whole for unit in self.units)

    @property
    def _gradients(self) -> int:
        return sum(unit.gradients for unit in self.units)

    def _gathering(self, unit: Unit) -> int:
        return unit.whole * (1 + self.host) + unit.flat

    def _forward(self, others: int, *, gathers: bool, born: bool) -> Iterator[Moment]:
        """A forward beside so many other microbatches; all is there unless it ``gathers``."""
        kept = others * self._microbatch
        gradients = self._gradients if born else 0
        gathered = 0 if gathers else self._whole
        buffer = 0
        for unit in self.units:
            if gathers:
                filling = buffer + self._gathering(unit)
                yield Moment(kept, gathered, gradients, filling)
                gathered += unit.whole
                buffer = unit.whole
            kept += unit.kept
            yield Moment(kept, gathered, gradients, buffer + unit.forward)
            if self.reshards:
                gathered -= unit.whole

    def _backward(self, flight: int, *, gathers: bool, first: bool) -> Iterator[Moment]:
        """A backward of one of ``flight`` microbatches; the ``first`` makes the gradients."""
        kept = flight * self._microbatch
        gradients = 0 if first else self._gradients
        gathered = 0 if gathers else self._whole
        ahead = 0
        if gathers:
            last = self.units[-1]
            yield Moment(kept, 0, gradients, last.arriving + self._gathering(last))
            ahead = last.whole
        for unit, before in zip(
            reversed(self.units), [*reversed(self.units[:-1]), None], strict=True
        ):
            if gathers:
                gathered += unit.whole
                yield Moment(kept, gathered, gradients, unit.arriving + ahead)
                ahead = before.whole if before else 0
                if before:
                    filling = unit.arriving + self._gathering(before)
                    yield Moment(kept, gathered, gradients, filling)
            working = unit.fresh if first or self.narrow else unit.working
            yield Moment(kept, gathered, gradients, ahead + working)
            kept -= unit.kept
            if first:
                gradients += unit.gradients
                yield Moment(kept, gathered, gradients, ahead)
            elif self.narrow:
                converted = unit.largest if self.host else 0
                yield Moment(kept, gathered, gradients, ahead + unit.born + converted)

    def _reduction(self) -> Iterator[Moment]:
        """What follows the last backward: no activations are left."""
        gathered, gradients = self._whole, self._gradients
        for unit in self.units:
            gathered -= unit.whole
            yield Moment(0, gathered, gradients, unit.gradients)
            gradients += unit.shard - unit.gradients
            yield Moment(0, gathered, gradients, unit.gradients * (1 + self.host))
