"""Choices that can be dropped from a choice problem before it is solved."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.solver.problem import NodeHolder, Problem

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
    """Drop choices that differ from a cheaper one in nothing that others can see."""
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
    kept = []
    for index, choices in enumerate(live):
        best: dict[tuple[object, ...], int] = {}
        costs = problem.nodes[index].costs
        for choice in choices:
            signature = tuple(seen[index][choice])
            if signature not in best or costs[choice] < costs[best[signature]]:
                best[signature] = choice
        kept.append(sorted(best.values()))
    return kept
