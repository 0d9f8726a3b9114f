"""The abstract choice problem behind the placement of one block.

A *node* picks one of its choices and pays for it. A *value* is made by a node in a state that
depends on the node's choice, and each of its *uses* requires a state that depends on the
using node's choice. Changing a state costs; a copy in one required state is made once for all
the uses that want it. A *store* holds bytes as soon as one of its holders needs them: a node
by its choice, or a use by the pair of states it sees.

Beside seconds, choices and changes count bytes of three kinds, worth seconds by the *weights*
of a question: many questions are asked about one problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Node", "NodeHolder", "Problem", "Store", "Use", "UseHolder", "Value", "Weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Seconds that a byte is worth: stored by a choice, summed by a change, held by a store."""

    stored: float = 0.0
    summed: float = 0.0
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """A decision: seconds of each choice, and the bytes it stores (none where left out)."""

    name: str
    costs: tuple[float, ...]
    stored: tuple[int, ...] = ()

    def cost(self, choice: int, weights: Weights) -> float:
        """Seconds of a choice, its bytes included."""
        if not self.stored:
            return self.costs[choice]
        return self.costs[choice] + weights.stored * self.stored[choice]


@dataclass(frozen=True, slots=True)
class Use:
    """A node that reads a value, and the state it requires by its choice."""

    node: int
    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: the state its producer makes by choice, its uses, seconds of legal changes.

    ``summed`` has the bytes that changes sum (none where left out).
    """

    producer: int
    states: tuple[int, ...]
    uses: tuple[Use, ...]
    conversions: Mapping[tuple[int, int], float]
    summed: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def change(self, pair: tuple[int, int], weights: Weights) -> float:
        """Seconds of a change, its bytes included; KeyError when it is illegal."""
        cost = self.conversions[pair]
        return cost + weights.summed * self.summed[pair] if pair in self.summed else cost

    def cost(self, choices: Sequence[int], weights: Weights) -> float:
        """Seconds of the copies under an assignment; KeyError when one is illegal."""
        made = self.states[choices[self.producer]]
        if len(self.uses) == 1:
            (use,) = self.uses
            return self.change((made, use.states[choices[use.node]]), weights)
        wanted = {use.states[choices[use.node]] for use in self.uses}
        return sum(self.change((made, state), weights) for state in sorted(wanted))


@dataclass(frozen=True, slots=True)
class NodeHolder:
    """A node that needs a store when it picks one of ``choices``."""

    node: int
    choices: frozenset[int]


@dataclass(frozen=True, slots=True)
class UseHolder:
    """A use (positions of value and use) that needs a store for ``pairs`` of (made, required)."""

    value: int
    use: int
    pairs: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Store:
    """Bytes held when some holder needs them."""

    size: int
    holders: tuple[NodeHolder | UseHolder, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Nodes, values and stores, and the most bytes that the stores may hold."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    stores: tuple[Store, ...] = ()
    memory_limit: int | None = None

    def memory(self, choices: Sequence[int]) -> int:
        """Bytes held under an assignment."""
        return sum(store.size for store in self.stores if self.is_held(store, choices))

    def is_held(self, store: Store, choices: Sequence[int]) -> bool:
        """Whether some holder of a store needs it under an assignment."""
        for holder in store.holders:
            if isinstance(holder, NodeHolder):
                if choices[holder.node] in holder.choices:
                    return True
                continue
            value = self.values[holder.value]
            use = value.uses[holder.use]
            made = value.states[choices[value.producer]]
            if (made, use.states[choices[use.node]]) in holder.pairs:
                return True
        return False

    def cost(self, choices: Sequence[int], weights: Weights) -> float:
        """Objective of an assignment in seconds; KeyError when a change is illegal."""
        pairs = zip(self.nodes, choices, strict=True)
        total = sum(node.cost(choice, weights) for node, choice in pairs)
        total += sum(value.cost(choices, weights) for value in self.values)
        return total + weights.held * self.memory(choices)
