"""Descent over single nodes: makes an assignment canonical, and never worse."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.solver.problem import NodeHolder, Problem, Store, UseHolder, Value, Weights

__all__ = ["Descent"]

_SAME = 1e-12
_PASSES = 100


class Descent:
    """Moves between assignments of a problem that differ in one node."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._values: list[list[Value]] = [[] for _ in problem.nodes]
        self._stores: list[list[Store]] = [[] for _ in problem.nodes]
        for value in problem.values:
            for node in dict.fromkeys((value.producer, *(use.node for use in value.uses))):
                self._values[node].append(value)
        for store in problem.stores:
            for node in dict.fromkeys(n for h in store.holders for n in _nodes_of(problem, h)):
                self._stores[node].append(store)

    def descend(
        self,
        choices: tuple[int, ...],
        weights: Weights,
        *,
        among: Sequence[Sequence[int]],
        objective: float,
    ) -> tuple[int, ...]:
        """Move single nodes, in order, to their best choice given the others, until none moves.

        ``among`` are the choices of each node that are looked at; ``objective`` is the cost of
        ``choices``.
        """
        problem = self._problem
        current = list(choices)
        slack = _SAME * max(objective, 0.0)
        room = None
        if problem.memory_limit is not None:
            room = problem.memory_limit - problem.memory(choices)
        nodes = [node for node, options in enumerate(among) if len(options) > 1]
        for _ in range(_PASSES):
            moved = False
            for node in nodes:
                before = current[node]
                cost, size = self._local(weights, current, node)
                best, best_cost, best_size = before, cost, size
                for choice in among[node]:
                    if choice == before:
                        continue
                    current[node] = choice
                    try:
                        c, b = self._local(weights, current, node)
                    except KeyError:
                        continue
                    if room is not None and b - size > max(room, 0):
                        continue
                    lower = c < best_cost - slack
                    if lower or (c <= best_cost and (b, choice) < (best_size, best)):
                        best, best_cost, best_size = choice, c, b
                current[node] = best
                if best != before:
                    moved = True
                    if room is not None:
                        room -= best_size - size
            if not moved:
                break
        return tuple(current)

    def _local(self, weights: Weights, choices: Sequence[int], node: int) -> tuple[float, int]:
        """Cost and bytes of one node and everything that touches it."""
        problem = self._problem
        held = sum(s.size for s in self._stores[node] if problem.is_held(s, choices))
        cost = problem.nodes[node].cost(choices[node], weights) + weights.held * held
        return cost + sum(value.cost(choices, weights) for value in self._values[node]), held


def _nodes_of(problem: Problem, holder: NodeHolder | UseHolder) -> tuple[int, ...]:
    if isinstance(holder, NodeHolder):
        return (holder.node,)
    value = problem.values[holder.value]
    return value.producer, value.uses[holder.use].node
