"""The abstract choice problem behind the placement of one block.

A *node* picks one of its choices and pays for it. A *value* is made by a node in a state that
depends on the node's choice, and each of its *uses* requires a state that depends on the
using node's choice. Changing a state costs; a copy in one required state is made once for all
the uses that want it. A *store* holds bytes as soon as one of its holders needs them: a node
by its choice, or a use by the pair of states it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Node", "NodeHolder", "Problem", "Store", "Use", "UseHolder", "Value", "value_cost"]


@dataclass(frozen=True, slots=True)
class Node:
    """A decision: seconds of each choice."""

    name: str
    costs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A node that reads a value, and the state it requires by its choice."""

    node: int
    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: the state its producer makes by choice, its uses, seconds of legal changes."""

    producer: int
    states: tuple[int, ...]
    uses: tuple[Use, ...]
    conversions: Mapping[tuple[int, int], float]


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
    """Nodes, values and stores; ``memory_weight`` is seconds per byte held."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    stores: tuple[Store, ...] = ()
    memory_weight: float = 0.0
    memory_limit: int | None = None

    def memory(self, choices: Sequence[int]) -> int:
        """Bytes held under an assignment."""
        return sum(store.size for store in self.stores if self.is_held(store, choices))

    def is_held(self, store: Store, choices: Sequence[int]) -> bool:
        """Whether some holder of a store needs it under an assignment."""
        return any(self._needs(holder, choices) for holder in store.holders)

    def _needs(self, holder: NodeHolder | UseHolder, choices: Sequence[int]) -> bool:
        if isinstance(holder, NodeHolder):
            return choices[holder.node] in holder.choices
        value = self.values[holder.value]
        use = value.uses[holder.use]
        made = value.states[choices[value.producer]]
        return (made, use.states[choices[use.node]]) in holder.pairs

    def cost(self, choices: Sequence[int]) -> float:
        """Objective of an assignment in seconds; KeyError when a change is illegal."""
        total = sum(node.costs[choice] for node, choice in zip(self.nodes, choices, strict=True))
        total += sum(value_cost(value, choices) for value in self.values)
        return total + self.memory_weight * self.memory(choices)


def value_cost(value: Value, choices: Sequence[int]) -> float:
    """Seconds of a value's copies under an assignment; KeyError when one is illegal."""
    made = value.states[choices[value.producer]]
    wanted = {use.states[choices[use.node]] for use in value.uses}
    return sum(value.conversions[made, state] for state in sorted(wanted))
