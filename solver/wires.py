"""One tensor of a block between its producer and its readers, at the placements they choose.

A value's conversions cost what the collectives of the placement algebra cost, forward and
backward together. A stored ``R`` used as ``R*`` sums the partial gradient once; a parameter is
never converted otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from autoplan.costs.compute import local_bytes
from autoplan.costs.resharding import Resharding
from autoplan.ir.graph import Tensor, TensorKind
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.solver.choices import BlockChoices
from autoplan.solver.problem import Use, Value

__all__ = ["Ends", "Storage", "Wire", "made_storage"]

Ends = tuple[int, tuple[Placement, ...]]
"""A node, and the placement that each of its choices makes or requires."""

Storage = tuple[str, str, int]
"""Tensor, state and bytes."""

_HELD_ELSEWHERE = (
    TensorKind.PARAMETER,
    TensorKind.BUFFER,
    TensorKind.SHARED,
    TensorKind.INPUT,
)

_PARTIAL = Replicate(True)


class Wire:
    """A tensor, who makes it and who reads it. Placements are numbered as they come."""

    def __init__(
        self, tensor: Tensor, choices: BlockChoices, made: Ends, readers: Sequence[Ends]
    ) -> None:
        self.tensor = tensor
        self.made = made
        self.readers = tuple(readers)
        self._choices = choices
        self._codes: dict[Placement, int] = {}
        self._values: dict[int, Value] = {}
        self._storages: dict[int, dict[Storage, list[tuple[int, int]]]] = {}
        codes = self._codes
        self._uses = tuple(
            Use(node, tuple(codes.setdefault(state, len(codes)) for state in states))
            for node, states in self.readers
        )
        self._wanted = tuple(codes)
        self._made = tuple(codes.setdefault(placement, len(codes)) for placement in made[1])

    def value(self, forwards: int) -> Value:
        """The value, where conversions of the forward run ``forwards`` times."""
        if forwards not in self._values:
            summed = {}
            if self.tensor.kind is TensorKind.PARAMETER:
                conversions = dict.fromkeys(self._stored_pairs, 0.0)
                summed = {pair: self.tensor.size for pair in conversions if pair[0] != pair[1]}
            else:
                conversions = {
                    pair: forwards * times.forward + times.backward
                    for pair, times in self._changes.items()
                }
            self._values[forwards] = Value(
                self.made[0], self._made, self._uses, conversions, summed
            )
        return self._values[forwards]

    @cached_property
    def _stored_pairs(self) -> list[tuple[int, int]]:
        codes = self._codes
        return [
            (codes[made], codes[wanted])
            for made in dict.fromkeys(self.made[1])
            for wanted in self._wanted
            if made == wanted or (made == Replicate() and wanted == _PARTIAL)
        ]

    @cached_property
    def _changes(self) -> dict[tuple[int, int], Resharding]:
        changes = {}
        for made in dict.fromkeys(self.made[1]):
            for wanted in self._wanted:
                times = self._choices.change(self.tensor, made, wanted)
                if times is not None:
                    changes[self._codes[made], self._codes[wanted]] = times
        return changes

    def read_storages(self, use: int) -> dict[Storage, list[tuple[int, int]]]:
        """Pairs of states of a use by the storage in which it sees the tensor."""
        if use not in self._storages:
            storages: dict[Storage, list[tuple[int, int]]] = {}
            wanting = dict.fromkeys(self.readers[use][1])
            for made in dict.fromkeys(self.made[1]):
                own = made_storage(self._choices, self.tensor, made)
                for wanted in wanting:
                    is_copied = self._choices.is_copied(made, wanted)
                    storage = self._copy(wanted) if is_copied else own
                    pair = self._codes[made], self._codes[wanted]
                    storages.setdefault(storage, []).append(pair)
            self._storages[use] = storages
        return self._storages[use]

    def received(self, use: int, sent: Placement | None) -> dict[Storage, list[tuple[int, int]]]:
        """Pairs of states of a use that take a collective, by the copy that it makes.

        The copy in which the block hands the tensor on is left out.
        """
        copies: dict[Storage, list[tuple[int, int]]] = {}
        wanting = dict.fromkeys(self.readers[use][1])
        for made in dict.fromkeys(self.made[1]):
            for wanted in wanting:
                pair = self._codes[made], self._codes[wanted]
                times = self._changes.get(pair)
                if times is None or times.forward_kind is None or wanted == sent:
                    continue
                if self._choices.is_copied(made, wanted):
                    copies.setdefault(self._copy(wanted), []).append(pair)
        return copies

    def _copy(self, wanted: Placement) -> Storage:
        size = local_bytes(self.tensor, wanted, self._choices.ranks)
        return self.tensor.name, str(wanted), size


def made_storage(choices: BlockChoices, tensor: Tensor, placement: Placement) -> Storage:
    """Storage a tensor was made in: that of the tensor it views."""
    base = choices.block.tensor(tensor.base)
    size = 0 if base.kind in _HELD_ELSEWHERE else base.size
    if not isinstance(placement, Shard):
        return base.name, "", size
    if placement.pad:
        whole = tensor.shape[placement.dim]
        return base.name, "padded", size * -(-whole // choices.ranks) // whole
    return base.name, "sharded", size // choices.ranks
