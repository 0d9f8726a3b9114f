"""What a block holds while its forward and its backward run, operator by operator.

A forward lets go of what no later operator reads, but for its inputs, which the caller holds. A
backward lets go of what an operator saved as soon as that operator's backward is over. A block
that is recomputed does so at the first saved tensor that its backward asks for, up to the last
operator that saves one, with the gradients of its outputs there already; what the selective level
kept ends where the second forward hands it out, unless autograd saves it. What a checkpoint keeps
hangs on the tensors that autograd saves: a block that saves none keeps nothing at either level.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoplan.ir.recompute import Recompute

__all__ = ["Held", "Step", "Storage", "Walk"]

Storage = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes ``kept`` from forward to backward, and what comes on top for a moment.

    ``forward`` and ``backward`` are the most that a pass holds besides ``kept``; the latter may
    be negative. ``fresh`` is the peak of a backward whose parameters have no gradient before it:
    these stay from their operator to the end; in ``backward`` each is added to one that exists.
    ``kept_inputs`` and ``kept_outputs`` say which tensors at the ends are in ``kept``.
    """

    kept: int
    forward: int
    backward: int
    fresh: int
    kept_inputs: tuple[bool, ...]
    kept_outputs: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operator: storages that it reads, writes and ``saved`` for its backward.

    ``extra`` is bytes that it saves besides, ``kept_extra`` what selective recompute keeps of
    things that are no storage. ``forward`` and ``backward`` are bytes inside the operator,
    ``gradients`` the storages whose gradients exist in its backward, ``weights`` the parameters
    whose gradients it makes.
    """

    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]
    saved: frozenset[Storage] = frozenset()
    extra: int = 0
    kept_extra: int = 0
    forward: int = 0
    backward: int = 0
    gradients: tuple[Storage, ...] = ()
    weights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The operators of a block in order, with the sizes of its storages.

    ``source`` is where a converted copy comes from. ``products`` are what selective recompute
    keeps: inputs, outputs of compute-bound operators and of collectives. ``weights`` is bytes of
    each parameter's gradient. ``saves`` tells that autograd saves some tensor, parameters included.
    """

    steps: tuple[Step, ...]
    size: Mapping[Storage, int]
    source: Mapping[Storage, Storage]
    entered: tuple[Storage, ...]
    sent: tuple[Storage, ...]
    products: frozenset[Storage]
    weights: Mapping[str, int]
    saves: bool
    _made: dict[Storage, int] = field(default_factory=dict, init=False)
    _read: dict[Storage, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for index, step in enumerate(self.steps):
            for key in (*step.reads, *step.writes):
                self._made.setdefault(key, index)
                self._read[key] = index
        for key in self.sent:
            self._made.setdefault(key, len(self.steps))
            self._read[key] = len(self.steps)
        for key in self.entered:
            self._made[key] = 0
            self._read[key] = len(self.steps)

    def levels(self) -> tuple[Held, Held, Held]:
        """What each recompute level holds, in the order of `Recompute`."""
        saved = frozenset[Storage]().union(*(step.saved for step in self.steps))
        products = self.products if self.saves else frozenset[Storage]()
        left = self._sum(key for key in products if not self._made_again(key))
        added, fresh = (self._backward(saved, stay=stay) for stay in (False, True))
        held = []
        for level in Recompute:
            storages = {
                Recompute.NONE: saved,
                Recompute.SELECTIVE: products,
                Recompute.FULL: frozenset(self.entered if self.saves else ()),
            }[level]
            extras = [level.of(step.extra, step.kept_extra, 0) for step in self.steps]
            kept = self._sum(storages) + sum(extras)
            first = self._curve({key: len(self.steps) for key in storages}, extras)
            again = level.of(0, self._selected_again(saved), self._all_again(saved))
            again = again if self.saves else 0
            besides = level.of(0, left, 0)
            held.append(
                Held(
                    kept=kept,
                    forward=max(0, max(first) - kept),
                    backward=max(again, added + besides) - kept,
                    fresh=max(again, fresh + besides) - kept,
                    kept_inputs=tuple(key in storages for key in self.entered),
                    kept_outputs=tuple(key in storages for key in self.sent),
                )
            )
        return held[0], held[1], held[2]

    def _sum(self, keys: Iterable[Storage]) -> int:
        return sum(self.size[key] for key in {*keys})

    def _curve(self, ends: Mapping[Storage, int], extras: Sequence[int]) -> list[int]:
        """Bytes during each operator of a forward, and after the last one.

        A storage ends after the operator that ``ends`` has for it, else after its last reader.
        ``extras`` are bytes that each operator adds.
        """
        change = [*extras, 0, 0]
        for key, made in self._made.items():
            change[made] += self.size[key]
            change[ends.get(key, self._read[key]) + 1] -= self.size[key]
        inside = [*(step.forward for step in self.steps), 0]
        sums = itertools.accumulate(change)
        return [held + more for held, more in zip(sums, inside, strict=False)]

    @property
    def _last(self) -> int:
        """Index of the last operator that saves something: there a second forward stops."""
        saving = [i for i, step in enumerate(self.steps) if step.saved or step.extra]
        return max(saving, default=-1)

    def _made_again(self, key: Storage) -> bool:
        """Whether a second forward makes it; an operator saves what it reads before it runs."""
        last = self._last
        if self._made[key] < last or key in self.entered:
            return True
        if self._made[key] > last:
            return False
        step = self.steps[last]
        return bool(step.extra) or not step.saved.isdisjoint(step.writes)

    def _all_again(self, saved: frozenset[Storage]) -> int:
        """Most bytes while all of the forward runs again."""
        ends = {key: len(self.steps) for key in saved}
        curve = self._curve(ends, [step.extra for step in self.steps])
        return max(curve[: self._last + 1], default=0) + self._sum(self.sent)

    def _selected_again(self, saved: frozenset[Storage]) -> int:
        """Most bytes while what was not kept is made again: what was kept is there before it."""
        ends = {key: len(self.steps) for key in saved}
        extras = [step.extra - step.kept_extra for step in self.steps]
        curve = self._curve(ends, extras)
        waiting = sum(step.kept_extra for step in self.steps)
        waiting += self._sum(key for key in self.products if key not in self.entered)
        handed: dict[int, int] = defaultdict(int)
        for key in self.products - {*self.entered}:
            if self._made_again(key):
                handed[self._made[key]] += self.size[key]
        peak = 0
        for index in range(self._last + 1):
            # What an operator hands out is in the curve from here on.
            waiting -= handed[index]
            inside = max(0, self.steps[index].kept_extra - self.steps[index].extra)
            peak = max(peak, curve[index] + waiting + inside)
        return peak + self._sum(self.sent)

    def _backward(self, saved: frozenset[Storage], *, stay: bool) -> int:
        """Most bytes of a backward: what is saved still, and the gradients that live.

        A gradient is as large as its tensor's storage and lives from its first reader to its
        producer. That of a converted copy ends where the copy was first read: there it becomes
        one of the source. Those of parameters ``stay``, or are added to what exists.
        """
        ends = [0] * len(self.steps)  # bytes that nothing needs before an operator's backward
        begin: dict[Storage, int] = {}
        first: dict[Storage, int] = {key: 0 for key in self.entered}
        for index, step in enumerate(self.steps):
            ends[index] += step.extra
            for key in step.saved:
                if first.setdefault(key, index) == index and key not in self.entered:
                    ends[index] += self.size[key]
            for key in (*step.writes, *(key for key in step.reads if key in self.source)):
                begin.setdefault(key, index)
        held = self._sum(saved) + sum(step.extra for step in self.steps)
        live = {*self.sent, *(self.source[key] for key in self.sent if key in self.source)}
        peak = held + self._sum(live)
        live -= {key for key in self.sent if key in self.source and key not in begin}
        learnt: set[str] = set()
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            live.update(step.gradients)
            done = {key for key in live if begin.get(key, -1) >= index}
            live.update(self.source[key] for key in done if key in self.source)
            learnt = {*(learnt if stay else ()), *step.weights}
            gradients = self._sum(live) + sum(self.weights[name] for name in learnt)
            peak = max(peak, held + gradients + step.backward)
            live -= done
            held -= ends[index]
        return peak
