"""Descent over single nodes: makes an assignment canonical, and never worse."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.solver.problem import NodeHolder, Problem, Store, UseHolder, Value, Weights

__all__ = ["descend"]

_SAME = 1e-12
_PASSES = 100


def descend(
    problem: Problem, weights: Weights, live: Sequence[Sequence[int]], choices: tuple[int, ...]
) -> tuple[int, ...]:
    """Move single nodes, in order, to their best choice given the others, until none moves."""
    values: list[list[Value]] = [[] for _ in problem.nodes]
    stores: list[list[Store]] = [[] for _ in problem.nodes]
    for value in problem.values:
        for node in dict.fromkeys((value.producer, *(use.node for use in value.uses))):
            values[node].append(value)
    for store in problem.stores:
        for node in dict.fromkeys(n for h in store.holders for n in _nodes_of(problem, h)):
            stores[node].append(store)
    current = list(choices)
    slack = _SAME * max(problem.cost(choices, weights), 0.0)
    room = None
    if problem.memory_limit is not None:
        room = problem.memory_limit - problem.memory(choices)
    for _ in range(_PASSES):
        moved = False
        for node, options in enumerate(live):
            if len(options) <= 1:
                continue
            before = current[node]
            cost, size = _local(problem, weights, values[node], stores[node], current, node)
            best, best_cost, best_size = before, cost, size
            for choice in options:
                current[node] = choice
                try:
                    c, b = _local(problem, weights, values[node], stores[node], current, node)
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


def _nodes_of(problem: Problem, holder: NodeHolder | UseHolder) -> tuple[int, ...]:
    if isinstance(holder, NodeHolder):
        return (holder.node,)
    value = problem.values[holder.value]
    return value.producer, value.uses[holder.use].node


def _local(
    problem: Problem,
    weights: Weights,
    values: Sequence[Value],
    stores: Sequence[Store],
    choices: Sequence[int],
    node: int,
) -> tuple[float, int]:
    """Cost and bytes of one node and everything that touches it."""
    held = sum(store.size for store in stores if problem.is_held(store, choices))
    cost = problem.nodes[node].cost(choices[node], weights) + weights.held * held
    return cost + sum(value.cost(choices, weights) for value in values), held
