"""The 0-1 program of a choice problem (see `problem`).

Variables, all in [0, 1]: ``s[i,c]`` (integer) node i picks choice c; ``e[x,j,p,q]`` use j of
value x requires q and the producer made p; ``y[x,p,q]`` value x is changed from p to q;
``m[k]`` store k is held. Minimise

    sum cost[i,c] s[i,c] + sum conversion[x,p,q] y[x,p,q] + weight sum size[k] m[k]

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

Equal answers: after the solve, a descent over single nodes in order moves to the choice with
the lowest (objective, bytes held, position), so it can only improve the answer, and the same
problem always gives the same one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.solver.descent import descend
from autoplan.solver.lp import Handover, LpModel, Sense, Termination
from autoplan.solver.problem import NodeHolder, Problem, Use, UseHolder, Value
from autoplan.solver.reduction import live_choices

__all__ = ["Assignment", "solve_problem"]

_COST_SCALE = 1e5
_MEMORY_SCALE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Choice of each node (empty when there is none), with objective and proven bound."""

    choices: tuple[int, ...]
    objective: float
    bound: float
    termination: Termination
    relaxation_integral: bool
    variables: int
    rows: int
    build_time: float
    solve_time: float


def solve_problem(
    problem: Problem, *, deadline: float, handover: Handover = Handover.ARRAYS
) -> Assignment:
    """Best assignment, by the 0-1 program; the time limit is a `time.monotonic` instant."""
    start = time.monotonic()
    live = live_choices(problem)
    if not all(live):
        return _without_answer(Termination.INFEASIBLE)
    if all(len(choices) == 1 for choices in live):
        return _only_answer(problem, tuple(choices[0] for choices in live))
    program = _Program(problem, live)
    result = program.model.solve(deadline=deadline, handover=handover)
    build_time = time.monotonic() - start - result.solve_time
    if not result.has_solution:
        return _without_answer(result.termination)
    choices = descend(problem, live, program.choices(result.values))
    objective = problem.cost(choices)
    optimal = result.termination is Termination.OPTIMAL
    bound = objective if optimal else min(objective, result.bound / program.scale)
    return Assignment(
        choices=choices,
        objective=objective,
        bound=bound,
        termination=result.termination,
        relaxation_integral=result.relaxation_integral,
        variables=len(program.model.costs),
        rows=len(program.model.rows),
        build_time=build_time,
        solve_time=result.solve_time,
    )


def _only_answer(problem: Problem, choices: tuple[int, ...]) -> Assignment:
    limit = problem.memory_limit
    if limit is not None and problem.memory(choices) > limit:
        return _without_answer(Termination.INFEASIBLE)
    objective = problem.cost(choices)
    return replace(
        _without_answer(Termination.OPTIMAL),
        choices=choices,
        objective=objective,
        bound=objective,
        relaxation_integral=True,
    )


def _without_answer(termination: Termination) -> Assignment:
    return Assignment(
        choices=(),
        objective=0.0,
        bound=0.0,
        termination=termination,
        relaxation_integral=False,
        variables=0,
        rows=0,
        build_time=0.0,
        solve_time=0.0,
    )


_Expression = tuple[int, ...]
"""A sum of distinct variables."""


class _Program:
    """The 0-1 program of a problem, over the live choices."""

    def __init__(self, problem: Problem, live: list[list[int]]) -> None:
        self.problem = problem
        self.live = live
        self.model = LpModel()
        self.scale = _cost_scale(problem, live)
        self._picks = [
            {choice: self._variable(node.costs[choice], integer=True) for choice in choices}
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

    def choices(self, values: Sequence[float]) -> tuple[int, ...]:
        """Choice of each node in an integral solution."""
        return tuple(max(picks, key=lambda choice: values[picks[choice]]) for picks in self._picks)

    def _variable(self, cost: float, *, integer: bool = False) -> int:
        return self.model.variable(cost * self.scale, integer=integer)

    def _charge(self, cost: float, terms: _Expression) -> None:
        for index in terms:
            self.model.costs[index] += cost * self.scale

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
            self._pay_once(value.conversions[pair], uses)

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
        if unrestricted and not watched and not any(map(value.conversions.get, pairs)):
            return {}
        if len(made) == 1:
            return {pair: wanted[pair[1]] for pair in pairs}
        if len(wanted) == 1:
            return {pair: made[pair[0]] for pair in pairs}
        edges: dict[tuple[int, int], _Expression] = {pair: (self._variable(0.0),) for pair in pairs}
        for state, terms in made.items():
            leaving = tuple(edges[pair][0] for pair in pairs if pair[0] == state)
            self._sum_row(Sense.EQUAL, 0.0, leaving, terms)
        for state, terms in wanted.items():
            arriving = tuple(edges[pair][0] for pair in pairs if pair[1] == state)
            self._sum_row(Sense.EQUAL, 0.0, arriving, terms)
        return edges

    def _pay_once(self, cost: float, uses: Sequence[_Expression]) -> None:
        """(C4): the cost of a pair, or of a store, for all who need it."""
        distinct = list(dict.fromkeys(uses))
        if not cost:
            return
        if len(distinct) == 1:
            self._charge(cost, distinct[0])
            return
        paid = self._variable(cost)
        for terms in distinct:
            self._sum_row(Sense.AT_LEAST, 0.0, (paid,), terms)

    def _stores(self) -> None:
        """(C5) and (C6)."""
        problem = self.problem
        held: list[tuple[_Expression, int]] = []
        for store in problem.stores:
            needing = [terms for terms in dict.fromkeys(map(self._needing, store.holders)) if terms]
            cost = problem.memory_weight * store.size
            if problem.memory_limit is None:
                if needing:
                    self._pay_once(cost, needing)
            elif len(needing) == 1:
                self._charge(cost, needing[0])
                held.append((needing[0], store.size))
            elif needing:
                paid = self._variable(cost)
                for terms in needing:
                    self._sum_row(Sense.AT_LEAST, 0.0, (paid,), terms)
                held.append(((paid,), store.size))
        if problem.memory_limit is not None:
            self._memory_row(held, problem.memory_limit)

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


def _cost_scale(problem: Problem, live: Sequence[Sequence[int]]) -> float:
    """Factor that brings costs well above the solver's absolute tolerances."""
    largest = max(
        (
            abs(node.costs[c])
            for node, choices in zip(problem.nodes, live, strict=True)
            for c in choices
        ),
        default=0.0,
    )
    for value in problem.values:
        largest = max(largest, max(map(abs, value.conversions.values()), default=0.0))
    return _COST_SCALE / largest if largest else 1.0
