"""The 0-1 program against enumeration on random small graphs."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from autoplan.solver.linear import Termination
from autoplan.solver.lp import Handover
from autoplan.solver.problem import Node, NodeHolder, Problem, Store, Use, UseHolder, Value, Weights
from autoplan.solver.program import Assignment, ChoiceProgram

NO_WEIGHTS = Weights()


def _solve(
    problem: Problem,
    weights: Weights = NO_WEIGHTS,
    *,
    seconds: float = 30.0,
    handover: Handover = Handover.ARRAYS,
) -> Assignment:
    deadline = time.monotonic() + seconds
    return ChoiceProgram(problem).solve(weights, deadline=deadline, handover=handover)


def _random_weights(rng: random.Random) -> Weights:
    return Weights(*(rng.choice((0.0, 0.01 * rng.random())) for _ in range(3)))


def _random_problem(seed: int) -> Problem:
    """A chain with extra readers of earlier values, as a block has."""
    rng = random.Random(seed)
    count = rng.randint(3, 6)
    states = rng.randint(2, 3)
    nodes = []
    for i in range(count):
        costs = tuple(rng.choice((0.0, rng.random())) for _ in range(rng.randint(1, 4)))
        stored = tuple(rng.randint(0, 100) for _ in costs) if rng.random() < 0.5 else ()
        nodes.append(Node(f"n{i}", costs, stored))
    values = []
    for producer in range(count - 1):
        readers = [producer + 1]
        readers += [j for j in range(producer + 2, count) if rng.random() < 0.4]
        if rng.random() < 0.3:
            readers.append(readers[-1])
        conversions = {
            pair: 0.0 if pair[0] == pair[1] else rng.random()
            for pair in itertools.product(range(states), repeat=2)
            if pair[0] == pair[1] or rng.random() < 0.75
        }
        values.append(
            Value(
                producer,
                tuple(rng.randrange(states) for _ in nodes[producer].costs),
                tuple(
                    Use(j, tuple(rng.randrange(states) for _ in nodes[j].costs)) for j in readers
                ),
                conversions,
                {pair: rng.randint(1, 100) for pair in conversions if rng.random() < 0.2},
            )
        )
    stores = tuple(
        Store(
            rng.randint(0, 100),
            (
                *(
                    NodeHolder(i, frozenset(c for c in range(4) if rng.random() < 0.6))
                    for i in rng.sample(range(count), rng.randint(1, 2))
                ),
                *(
                    UseHolder(
                        v,
                        rng.randrange(len(values[v].uses)),
                        frozenset(p for p in values[v].conversions if rng.random() < 0.5),
                    )
                    for v in rng.sample(range(len(values)), rng.randint(0, 2))
                ),
            ),
        )
        for _ in range(rng.randint(1, 5))
    )
    limit = rng.randint(20, 250) if seed % 2 else None
    return Problem(tuple(nodes), tuple(values), stores, limit)


def _price(
    problem: Problem, weights: Weights, choices: tuple[int, ...]
) -> tuple[float, int] | None:
    """Seconds and bytes written out from the definition; None when something is illegal."""
    seconds = 0.0
    for node, choice in zip(problem.nodes, choices, strict=True):
        seconds += node.costs[choice]
        if node.stored:
            seconds += weights.stored * node.stored[choice]
    for value in problem.values:
        made = value.states[choices[value.producer]]
        copies = set()
        for use in value.uses:
            pair = (made, use.states[choices[use.node]])
            if pair not in value.conversions:
                return None
            copies.add(pair)
        for pair in copies:
            seconds += value.conversions[pair] + weights.summed * value.summed.get(pair, 0)
    held = 0
    for store in problem.stores:
        needed = False
        for holder in store.holders:
            if isinstance(holder, NodeHolder):
                needed |= choices[holder.node] in holder.choices
            else:
                value = problem.values[holder.value]
                use = value.uses[holder.use]
                made = value.states[choices[value.producer]]
                needed |= (made, use.states[choices[use.node]]) in holder.pairs
        held += store.size * needed
    return seconds + weights.held * held, held


def _brute_force(problem: Problem, weights: Weights) -> float | None:
    best = None
    for choices in itertools.product(*(range(len(node.costs)) for node in problem.nodes)):
        price = _price(problem, weights, choices)
        if price is None:
            continue
        if problem.memory_limit is not None and price[1] > problem.memory_limit:
            continue
        best = price[0] if best is None else min(best, price[0])
    return best


@pytest.mark.parametrize("with_memory_row", [False, True])
def test_program_finds_what_enumeration_finds(with_memory_row: bool) -> None:
    solved = branched = 0
    for seed in range(with_memory_row, 1000, 2):
        problem = _random_problem(seed)
        assert (problem.memory_limit is not None) == with_memory_row
        weights = _random_weights(random.Random(seed))
        best = _brute_force(problem, weights)
        answer = _solve(problem, weights)
        if best is None:
            assert answer.termination is Termination.INFEASIBLE, seed
            continue
        assert answer.termination is Termination.OPTIMAL, seed
        price = _price(problem, weights, answer.choices)
        assert price is not None, seed
        assert price[0] == pytest.approx(best, rel=1e-9, abs=1e-12), seed
        if seed % 10 < 2:
            through_pulp = _solve(problem, weights, handover=Handover.PULP)
            assert through_pulp.objective == pytest.approx(answer.objective, rel=1e-9)
        assert answer.objective == pytest.approx(price[0], rel=1e-12, abs=1e-15), seed
        assert problem.memory_limit is None or price[1] <= problem.memory_limit, seed
        solved += 1
        branched += not answer.relaxation_integral
    assert solved >= 200
    assert branched >= 3


def test_copy_is_paid_once_for_all_readers() -> None:
    nodes = (Node("make", (0.0,)), *(Node(f"read{i}", (0.0,)) for i in range(3)))
    uses = tuple(Use(i, (1,)) for i in (1, 2, 3))
    problem = Problem(nodes, (Value(0, (0,), uses, {(0, 0): 0.0, (0, 1): 2.5}),))
    assert _solve(problem).objective == 2.5


def test_store_shared_by_two_holders_counts_once() -> None:
    nodes = (Node("a", (1.0, 0.0)), Node("b", (1.0, 0.0)))
    store = Store(10, (NodeHolder(0, frozenset({1})), NodeHolder(1, frozenset({1}))))
    within = Problem(nodes, (), (store,), 10)
    assert _solve(within).choices == (1, 1)
    below = Problem(nodes, (), (store,), 9)
    assert _solve(below).choices == (0, 0)


def test_memory_row_that_nothing_meets_is_infeasible() -> None:
    store = Store(10, (NodeHolder(0, frozenset({0})),))
    problem = Problem((Node("a", (1.0,)),), (), (store,), 5)
    answer = _solve(problem)
    assert answer.termination is Termination.INFEASIBLE
    assert answer.choices == ()


def test_equal_choices_give_the_first() -> None:
    nodes = (Node("a", (1.0, 1.0, 1.0)), Node("b", (0.0, 0.0)))
    free = {pair: 0.0 for pair in itertools.product(range(3), range(2))}
    problem = Problem(nodes, (Value(0, (0, 1, 2), (Use(1, (0, 1)),), free),))
    assert _solve(problem).choices == (0, 0)


def test_deadline_in_the_past_gives_no_answer() -> None:
    value = Value(0, (0, 1), (Use(1, (0, 1)),), {(0, 0): 0.0, (1, 1): 0.0})
    problem = Problem((Node("a", (1.0, 2.0)), Node("b", (2.0, 1.0))), (value,))
    answer = _solve(problem, seconds=-1.0)
    assert answer.termination is Termination.TIME_LIMIT
    assert answer.choices == ()


def test_solver_writes_nothing_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    value = Value(0, (0, 1), (Use(1, (0, 1)),), {(0, 0): 0.0, (1, 1): 0.0})
    problem = Problem((Node("a", (1.0, 2.0)), Node("b", (2.0, 1.0))), (value,))
    _solve(problem)
    assert capfd.readouterr().out == ""


def test_an_answer_does_not_depend_on_what_was_asked_before() -> None:
    for seed in range(120):
        problem = _random_problem(seed)
        rng = random.Random(seed)
        questions = [_random_weights(rng) for _ in range(4)]
        program, other = ChoiceProgram(problem), ChoiceProgram(problem)
        deadline = time.monotonic() + 30
        answers = [program.solve(weights, deadline=deadline) for weights in questions]
        reverse = [other.solve(weights, deadline=deadline) for weights in reversed(questions)]
        for first, second, weights in zip(answers, reversed(reverse), questions, strict=True):
            alone = _solve(problem, weights)
            assert first.choices == second.choices == alone.choices, seed
            assert first.objective == second.objective == alone.objective, seed
