"""The 0-1 program of a choice problem (see `problem`).

Variables, all in [0, 1]: ``s[i,c]`` (integer) node i picks choice c; ``e[x,j,p,q]`` use j of
value x requires q and the producer made p; ``y[x,p,q]`` value x is changed from p to q;
``m[k]`` store k is held. Minimise

    sum cost[i,c] s[i,c] + sum conversion[x,p,q] y[x,p,q] + held sum size[k] m[k]

subject to

    (C1)  sum_c s[i,c] = 1                                       every node i
    (C2)  sum_q e[x,j,p,q] = sum of s[producer,c] that make p    every use j, state p
    (C3)  sum_p e[x,j,p,q] = sum of s[j,c] that require q        every use j, state q
    (C4)  y[x,p,q] >= e[x,j,p,q]                                 every use j
    (C5)  m[k] >= sum of s[i,c] or e[x,j,p,q] that need store k  every holder of k
    (C6)  sum size[k] m[k] <= limit                              when there is a limit

An illegal change has no variable, which (C2) and (C3) turn into a ban. The equality form of
the marginals is tighter than ``e >= s + s - 1``: without (C6) the relaxation is integral
almost always. Where one side has a single state, or one use wants a pair, ``e`` and ``y`` are
sums of ``s`` and need no variable of their own.

A cost is seconds and bytes stored, summed and held, which are worth seconds by the weights of a
question (``held`` above): so the rows belong to the problem, and a question has only its costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autoplan.solver.linear import Costs, LpModel, Sense
from autoplan.solver.problem import Node, NodeHolder, Problem, Use, UseHolder, Value

__all__ = ["ProgramRows"]

_MEMORY_SCALE = 1e6

_Expression = tuple[int, ...]
"""A sum of distinct variables."""

_Price = tuple[float, int, int, int]
"""Seconds, and bytes stored, summed and held."""

_FREE: _Price = (0.0, 0, 0, 0)


class ProgramRows:
    """The 0-1 program of a problem over its live choices, and what its variables cost."""

    def __init__(self, problem: Problem, live: list[list[int]]) -> None:
        self.problem = problem
        self.model = LpModel()
        self.prices: list[list[float]] = []
        """By variable: seconds, then bytes stored, summed and held."""
        self._picks = [
            {choice: self._pick(node, choice) for choice in choices}
            for node, choices in zip(problem.nodes, live, strict=True)
        ]
        self._one_choice_each()
        # Marginals by (value, use): those that a store looks at, and all that cost something.
        self._watched = {
            (holder.value, problem.values[holder.value].uses[holder.use])
            for store in problem.stores
            for holder in store.holders
            if isinstance(holder, UseHolder)
        }
        self._edges: dict[tuple[int, Use], dict[tuple[int, int], _Expression]] = {}
        for index, value in enumerate(problem.values):
            self._conversions(index, value)
        self._stores()

    def assignment(self, values: Costs) -> tuple[int, ...]:
        """Choice of each node in an integral solution."""
        return tuple(max(picks, key=lambda choice: values[picks[choice]]) for picks in self._picks)

    def choices(self, allowed: npt.NDArray[np.bool_]) -> list[list[int]]:
        """Choices of each node whose variables are allowed."""
        flags = allowed.tolist()
        return [
            [choice for choice, variable in picks.items() if flags[variable]]
            for picks in self._picks
        ]

    def _variable(self, price: _Price = _FREE, *, integer: bool = False) -> int:
        self.prices.append(list(price))
        return self.model.variable(integer=integer)

    def _pick(self, node: Node, choice: int) -> int:
        stored = node.stored[choice] if node.stored else 0
        return self._variable((node.costs[choice], stored, 0, 0), integer=True)

    def _charge(self, price: _Price, terms: _Expression) -> None:
        for index in terms:
            self.prices[index] = [a + b for a, b in zip(self.prices[index], price, strict=True)]

    def _sum_row(self, sense: Sense, bound: float, plus: _Expression, minus: _Expression) -> None:
        self.model.row(sense, bound, (*plus, *minus), (*(1.0,) * len(plus), *(-1.0,) * len(minus)))

    def _one_choice_each(self) -> None:
        """(C1)."""
        for picks in self._picks:
            self._sum_row(Sense.EQUAL, 1.0, tuple(picks.values()), ())

    def _by_state(self, node: int, states: Sequence[int]) -> dict[int, _Expression]:
        groups: dict[int, list[int]] = {}
        for choice, variable in self._picks[node].items():
            groups.setdefault(states[choice], []).append(variable)
        return {state: tuple(group) for state, group in groups.items()}

    def _conversions(self, index: int, value: Value) -> None:
        """(C2) to (C4) for one value."""
        made = self._by_state(value.producer, value.states)
        wanting: dict[tuple[int, int], list[_Expression]] = {}
        for use in dict.fromkeys(value.uses):
            wanted = self._by_state(use.node, use.states)
            watched = (index, use) in self._watched
            edges = self._marginals(value, made, wanted, watched=watched)
            self._edges[index, use] = edges
            for pair, terms in edges.items():
                wanting.setdefault(pair, []).append(terms)
        for pair, uses in wanting.items():
            self._pay_once((value.conversions[pair], 0, value.summed.get(pair, 0), 0), uses)

    def _marginals(
        self,
        value: Value,
        made: Mapping[int, _Expression],
        wanted: Mapping[int, _Expression],
        *,
        watched: bool,
    ) -> dict[tuple[int, int], _Expression]:
        """(C2) and (C3) for one use: ``e`` by pair, left out where it is free and unwatched."""
        pairs = [pair for pair in itertools.product(made, wanted) if pair in value.conversions]
        unrestricted = len(pairs) == len(made) * len(wanted)
        free = not any(value.conversions[pair] or pair in value.summed for pair in pairs)
        if unrestricted and free and not watched:
            return {}
        if len(made) == 1:
            return {pair: wanted[pair[1]] for pair in pairs}
        if len(wanted) == 1:
            return {pair: made[pair[0]] for pair in pairs}
        edges: dict[tuple[int, int], _Expression] = {pair: (self._variable(),) for pair in pairs}
        for state, terms in made.items():
            leaving = tuple(edges[pair][0] for pair in pairs if pair[0] == state)
            self._sum_row(Sense.EQUAL, 0.0, leaving, terms)
        for state, terms in wanted.items():
            arriving = tuple(edges[pair][0] for pair in pairs if pair[1] == state)
            self._sum_row(Sense.EQUAL, 0.0, arriving, terms)
        return edges

    def _pay_once(self, price: _Price, uses: Sequence[_Expression]) -> _Expression:
        """(C4): the price of a pair, or of a store, for all who need it; who pays."""
        distinct = list(dict.fromkeys(uses))
        if not any(price):
            return ()
        if len(distinct) == 1:
            self._charge(price, distinct[0])
            return distinct[0]
        paid = self._variable(price)
        for terms in distinct:
            self._sum_row(Sense.AT_LEAST, 0.0, (paid,), terms)
        return (paid,)

    def _stores(self) -> None:
        """(C5) and (C6)."""
        held: list[tuple[_Expression, int]] = []
        for store in self.problem.stores:
            needing = [terms for terms in map(self._needing, store.holders) if terms]
            if needing:
                held.append((self._pay_once((0.0, 0, 0, store.size), needing), store.size))
        if self.problem.memory_limit is not None:
            self._memory_row(held, self.problem.memory_limit)

    def _needing(self, holder: NodeHolder | UseHolder) -> _Expression:
        if isinstance(holder, NodeHolder):
            picks = self._picks[holder.node]
            return tuple(picks[choice] for choice in sorted(holder.choices & picks.keys()))
        use = self.problem.values[holder.value].uses[holder.use]
        edges = self._edges[holder.value, use]
        return tuple(v for pair in sorted(holder.pairs & edges.keys()) for v in edges[pair])

    def _memory_row(self, held: Sequence[tuple[_Expression, int]], limit: int) -> None:
        """(C6)."""
        sizes: dict[int, int] = {}
        for terms, size in held:
            for index in terms:
                sizes[index] = sizes.get(index, 0) + size
        unit = _MEMORY_SCALE / max(1, limit)
        coefficients = tuple(size * unit for size in sizes.values())
        self.model.row(Sense.AT_MOST, limit * unit, tuple(sizes), coefficients)
