"""Choices that can be dropped from a choice problem before it is solved."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.solver.problem import Node, NodeHolder, Problem

__all__ = ["live_choices"]


def live_choices(problem: Problem) -> list[list[int]]:
    """Choices of each node that have a legal partner across each value, until none changes."""
    live = [list(range(len(node.costs))) for node in problem.nodes]
    changed = True
    while changed:
        changed = False
        for value in problem.values:
            for use in value.uses:
                made = {value.states[choice] for choice in live[value.producer]}
                wanted = {use.states[choice] for choice in live[use.node]}
                pairs = [
                    pair for pair in value.conversions if pair[0] in made and pair[1] in wanted
                ]
                sources = {pair[0] for pair in pairs}
                targets = {pair[1] for pair in pairs}
                changed |= _keep(live, value.producer, value.states, sources)
                changed |= _keep(live, use.node, use.states, targets)
    return _without_duplicates(problem, live)


def _keep(live: list[list[int]], node: int, states: Sequence[int], allowed: set[int]) -> bool:
    kept = [choice for choice in live[node] if states[choice] in allowed]
    changed = len(kept) < len(live[node])
    live[node] = kept
    return changed


def _without_duplicates(problem: Problem, live: list[list[int]]) -> list[list[int]]:
    """Drop choices that no weight makes better than one that others can't tell from them."""
    seen: list[list[list[object]]] = [[[] for _ in node.costs] for node in problem.nodes]
    for value in problem.values:
        for choice, state in enumerate(value.states):
            seen[value.producer][choice].append(state)
        for use in value.uses:
            for choice, state in enumerate(use.states):
                seen[use.node][choice].append(state)
    for store in problem.stores:
        for holder in store.holders:
            if isinstance(holder, NodeHolder):
                for choice in range(len(problem.nodes[holder.node].costs)):
                    seen[holder.node][choice].append(choice in holder.choices)
    return [
        _undominated(problem.nodes[index], choices, seen[index])
        for index, choices in enumerate(live)
    ]


def _undominated(node: Node, choices: list[int], seen: list[list[object]]) -> list[int]:
    """Choices without a cheaper one, or an equal one before, of the same signature."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for choice in choices:
        alike.setdefault(tuple(seen[choice]), []).append(choice)
    if len(alike) == len(choices):
        return choices
    return sorted(
        choice
        for group in alike.values()
        for choice in group
        if not any(_dominates(node, other, choice) for other in group if other != choice)
    )


def _dominates(node: Node, other: int, choice: int) -> bool:
    price, than = _price(node, other), _price(node, choice)
    return price[0] <= than[0] and price[1] <= than[1] and (price != than or other < choice)


def _price(node: Node, choice: int) -> tuple[float, int]:
    return node.costs[choice], node.stored[choice] if node.stored else 0
