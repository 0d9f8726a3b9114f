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

_Marginals = dict[tuple[int, int], _Expression]
"""By pair of a made and a required state, where it is legal."""


class ProgramRows:
    """The 0-1 program of a problem over its live choices, and what its variables cost."""

    def __init__(self, problem: Problem, live: list[list[int]]) -> None:
        self.problem = problem
        self.model = LpModel()
        self._seconds: list[float] = []
        self._bytes: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._picks = [
            {choice: self._pick(node, choice) for choice in choices}
            for node, choices in zip(problem.nodes, live, strict=True)
        ]
        for picks in self._picks:
            self._equal(tuple(picks.values()), (), 1.0)  # (C1)
        # Uses that a store looks at: their marginals are needed though they may be free.
        self._watched = {
            (holder.value, holder.use)
            for store in problem.stores
            for holder in store.holders
            if isinstance(holder, UseHolder)
        }
        self._edges: dict[tuple[int, int], _Marginals] = {}
        for index, value in enumerate(problem.values):
            self._conversions(index, value)
        self._stores()

    def prices(self) -> Costs:
        """By variable: seconds, then bytes stored, summed and held; a row each."""
        return np.array((self._seconds, *self._bytes), dtype=float)

    def assignment(self, values: Costs) -> tuple[int, ...]:
        """Choice of each node in an integral solution."""
        found = values.tolist()
        return tuple(max(picks, key=lambda choice: found[picks[choice]]) for picks in self._picks)

    def choices(self, allowed: npt.NDArray[np.bool_]) -> list[list[int]]:
        """Choices of each node whose variables are allowed."""
        flags = allowed.tolist()
        return [
            [choice for choice, variable in picks.items() if flags[variable]]
            for picks in self._picks
        ]

    def _variable(self, price: _Price = _FREE, *, integer: bool = False) -> int:
        self._seconds.append(price[0])
        for kind, size in zip(self._bytes, price[1:], strict=True):
            kind.append(size)
        return self.model.variable(integer=integer)

    def _pick(self, node: Node, choice: int) -> int:
        stored = node.stored[choice] if node.stored else 0
        return self._variable((node.costs[choice], stored, 0, 0), integer=True)

    def _charge(self, price: _Price, terms: _Expression) -> None:
        for index in terms:
            self._seconds[index] += price[0]
            for kind, size in zip(self._bytes, price[1:], strict=True):
                kind[index] += size

    def _equal(self, plus: _Expression, minus: _Expression, bound: float = 0.0) -> None:
        signs = (1.0,) * len(plus) + (-1.0,) * len(minus)
        self.model.row(Sense.EQUAL, bound, plus + minus, signs)

    def _by_state(self, node: int, states: Sequence[int]) -> dict[int, _Expression]:
        groups: dict[int, list[int]] = {}
        for choice, variable in self._picks[node].items():
            groups.setdefault(states[choice], []).append(variable)
        return {state: tuple(group) for state, group in groups.items()}

    def _conversions(self, index: int, value: Value) -> None:
        """(C2) to (C4) for one value."""
        made = self._by_state(value.producer, value.states)
        wanting: dict[tuple[int, int], list[_Expression]] = {}
        known: dict[Use, _Marginals] = {}
        watched = {
            use for position, use in enumerate(value.uses) if (index, position) in self._watched
        }
        for position, use in enumerate(value.uses):
            if use not in known:
                wanted = self._by_state(use.node, use.states)
                known[use] = self._marginals(value, made, wanted, watched=use in watched)
                for pair, terms in known[use].items():
                    wanting.setdefault(pair, []).append(terms)
            self._edges[index, position] = known[use]
        for pair, uses in wanting.items():
            self._pay_once((value.conversions[pair], 0, value.summed.get(pair, 0), 0), uses)

    def _marginals(
        self,
        value: Value,
        made: Mapping[int, _Expression],
        wanted: Mapping[int, _Expression],
        *,
        watched: bool,
    ) -> _Marginals:
        """(C2) and (C3) for one use: ``e`` by pair, left out where it is free and unwatched."""
        legal = value.conversions
        pairs = [(p, q) for p in made for q in wanted if (p, q) in legal]
        unrestricted = len(pairs) == len(made) * len(wanted)
        free = not any(legal[pair] or pair in value.summed for pair in pairs)
        if unrestricted and free and not watched:
            return {}
        if len(made) == 1:
            return {pair: wanted[pair[1]] for pair in pairs}
        if len(wanted) == 1:
            return {pair: made[pair[0]] for pair in pairs}
        edges: _Marginals = {pair: (self._variable(),) for pair in pairs}
        leaving: dict[int, _Expression] = dict.fromkeys(made, ())
        arriving: dict[int, _Expression] = dict.fromkeys(wanted, ())
        for (p, q), terms in edges.items():
            leaving[p] += terms
            arriving[q] += terms
        for state, terms in leaving.items():
            self._equal(terms, made[state])
        for state, terms in arriving.items():
            self._equal(terms, wanted[state])
        return edges

    def _pay_once(self, price: _Price, uses: Sequence[_Expression]) -> _Expression:
        """(C4): the price of a pair, or of a store, for all who need it; who pays."""
        if not any(price):
            return ()
        distinct = list(dict.fromkeys(uses)) if len(uses) > 1 else uses
        if len(distinct) == 1:
            self._charge(price, distinct[0])
            return distinct[0]
        paid = (self._variable(price),)
        for terms in distinct:
            signs = (1.0,) + (-1.0,) * len(terms)
            self.model.row(Sense.AT_LEAST, 0.0, paid + terms, signs)
        return paid

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
        edges = self._edges[holder.value, holder.use]
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
