"""Why a plan places parameters and operators as it does, and what the runner-up costs.

The runner-up of a choice is the best of the block without it: the block's program solved again in
the same frame (placements at its ends, tied parameters) and at the same recompute level, for the
least time of a step or, where that does not fit, with a weight on memory. The whole plan is then
priced with that in all copies of the block.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from autoplan.costs.collectives import collective_time
from autoplan.costs.memory import state_bytes
from autoplan.costs.terms import BlockTerms, block_terms
from autoplan.errors import InfeasibleError, UsageError
from autoplan.ir.explanation import (
    Alternative,
    CollectiveTerm,
    OperatorTerm,
    PlacementExplanation,
)
from autoplan.ir.graph import Op
from autoplan.ir.names import near_matches
from autoplan.ir.placement import CollectiveKind
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import strategies
from autoplan.solver.blocks import BlockPricer, Question
from autoplan.solver.frames import Frame, storage_options
from autoplan.solver.intra import BlockSolution
from autoplan.solver.placement_pins import parameter_patterns
from autoplan.solver.planned import PlannedModel
from autoplan.solver.pricing import Priced, parameter_time

__all__ = ["explain_placements"]

_SECONDS = 60.0
"""For one program: a block's takes far less."""

_WEIGHTS = (0.0, 1.0, 30.0)
"""Of memory, the first that fits counts; see `Question.alpha`."""

_SAMPLE = 10**6


def explain_placements(model: PlannedModel, target: str) -> list[PlacementExplanation]:
    """Explanations of the parameters (FQN or glob) or operators (name) that a target means.

    Copies that are planned alike are explained once. UsageError where it means nothing.
    """
    chosen = model.priced()
    found = [
        _parameter(model, chosen, index, local, fqn)
        for index, local, fqn in _parameters(model, target)
    ]
    found += [
        _operator(model, chosen, index, op)
        for index, block in enumerate(model.graph.classes)
        for op in block.ops
        if op.name == target
    ]
    if not found:
        known = [*parameter_patterns(model.graph), *_operators(model)]
        raise UsageError(
            f"{model.graph.name} has no parameter and no operator {target!r}",
            hint=near_matches(target, known, what="parameters and operators", most=12)
            + " (or a degree: tp=8)",
        )
    return found


def _operators(model: PlannedModel) -> Iterable[str]:
    return dict.fromkeys(op.name for block in model.graph.classes for op in block.ops)


def _parameters(model: PlannedModel, target: str) -> list[tuple[int, str, str]]:
    """Class, local name and FQN of what matches, the first of each class and name."""
    names = {p.fqn: (p.fqn, *p.aliases) for p in model.graph.parameters}
    matching = {
        fqn for fqn, known in names.items() if any(fnmatchcase(name, target) for name in known)
    }
    found: dict[tuple[int, str], str] = {}
    seen: set[str] = set()
    for instance in model.graph.instances:
        block = model.graph.block_class(instance)
        for local, fqn in zip(block.parameters, instance.parameters, strict=True):
            if fqn in matching and fqn not in seen:
                found.setdefault((instance.block_class, local), fqn)
            seen.add(fqn)
    return [(index, local, fqn) for (index, local), fqn in found.items()]


def _parameter(
    model: PlannedModel, chosen: Priced, index: int, local: str, fqn: str
) -> PlacementExplanation:
    block, tp = model.graph.classes[index], model.group.ranks
    placement = model.stored[fqn]
    users = _classes_of(model, fqn)
    options = storage_options(block, local, tp, model.cluster)
    alternatives = []
    for option in options:
        if option == placement:
            continue
        tied = {**dict(model.frame.tied), **({fqn: option} if len(users) > 1 else {})}
        frame = Frame(model.frame.boundary, tuple(sorted(tied.items())))
        stored = dict.fromkeys(_copies(model, index, local), option)
        pricer = model.pricer.storing({**model.pinned, **stored})
        tried = _weighed(model, _solver(model, pricer, users, frame))
        if tried is not None:
            alternatives.append(_alternative(model, str(option), *tried, local))
    readers = [op for op in block.ops if local in op.inputs]
    touched = {name for op in readers for name in (*op.inputs, *op.outputs)}
    parameter = model.graph.parameter(fqn)
    count = next(n for name, n, _ in model.point.costs[index].parameters if name == local)
    settings = model.configuration.memory_settings(model.itemsize, update=model.update)
    state = state_bytes(count, count if parameter.trainable else 0, settings)
    summed = []
    if model.point.solutions[index].placements[local][1]:
        size = int(count * model.configuration.gradient_bytes(model.itemsize))
        seconds = collective_time(CollectiveKind.ALL_REDUCE, size, model.group, model.cluster)
        kind = CollectiveKind.ALL_REDUCE.value
        summed.append(
            CollectiveTerm(what="gradient", kind=kind, when="step", payload=size, seconds=seconds)
        )
    return PlacementExplanation(
        kind="parameter",
        name=fqn,
        block=_name(model, index),
        copies=_count(model, index),
        ranks=tp,
        shape=parameter.shape,
        chosen=str(placement),
        pinned=fqn in model.pinned,
        operators=_operator_terms(model, index, readers),
        collectives=(*_collective_terms(model, index, touched, readers), *summed),
        state=tuple(zip(("parameters", "gradients", "optimizer", "gathered"), state, strict=True)),
        step_time=chosen.step_time,
        peak_memory=chosen.peak_memory,
        alternatives=_ranked(alternatives),
    )


def _operator(model: PlannedModel, chosen: Priced, index: int, op: Op) -> PlacementExplanation:
    block, tp = model.graph.classes[index], model.group.ranks
    strategy = model.point.solutions[index].strategies[op.name]
    alternatives = []
    if len(strategies(op, block, tp)) > 1:
        barred = ((op.name, strategy),)
        tried = _weighed(model, _solver(model, model.pricer, [index], model.frame, barred))
        if tried is not None:
            text = str(tried[0][index].strategies[op.name])
            alternatives.append(_alternative(model, text, *tried, ""))
    names = {*op.inputs, *op.outputs}
    output = block.tensor(op.outputs[0])
    return PlacementExplanation(
        kind="operator",
        name=op.name,
        block=_name(model, index),
        copies=_count(model, index),
        ranks=tp,
        shape=output.shape,
        chosen=str(strategy),
        pinned=False,
        operators=_operator_terms(model, index, [op]),
        collectives=tuple(_collective_terms(model, index, names, [op])),
        state=(),
        step_time=chosen.step_time,
        peak_memory=chosen.peak_memory,
        alternatives=_ranked(alternatives),
    )


def _classes_of(model: PlannedModel, fqn: str) -> list[int]:
    """Classes whose blocks use a parameter."""
    users = (i.block_class for i in model.graph.instances if fqn in i.parameters)
    return list(dict.fromkeys(users))


def _copies(model: PlannedModel, index: int, local: str) -> list[str]:
    """FQNs that a local name of a class stands for."""
    position = model.graph.classes[index].parameters.index(local)
    return [i.parameters[position] for i in model.graph.instances if i.block_class == index]


def _solver(
    model: PlannedModel,
    pricer: BlockPricer,
    classes: Sequence[int],
    frame: Frame,
    barred: tuple[tuple[str, OpStrategy], ...] = (),
) -> Callable[[float], dict[int, BlockSolution]]:
    """Solutions of some classes by the weight of memory."""

    def solve(weight: float) -> dict[int, BlockSolution]:
        deadline = time.monotonic() + _SECONDS
        return {
            index: pricer.block(_question(model, index, weight), index, frame, deadline, barred)
            for index in classes
        }

    return solve


def _weighed(
    model: PlannedModel, solve: Callable[[float], dict[int, BlockSolution]]
) -> tuple[dict[int, BlockSolution], Priced] | None:
    """Solutions and the plan with them, of the least weight of memory at which that fits.

    The leanest where none does, none where the choice is illegal.
    """
    found: list[tuple[dict[int, BlockSolution], Priced]] = []
    for weight in _WEIGHTS:
        try:
            changed = solve(weight)
        except InfeasibleError:
            return None
        priced = model.priced(changed)
        if priced.peak_memory <= model.plan.prediction.memory_limit:
            return changed, priced
        found.append((changed, priced))
    return min(found, key=lambda tried: tried[1].peak_memory)


def _question(model: PlannedModel, index: int, weight: float) -> Question:
    """What the least time of a step asks of a class at its recompute level and that weight."""
    configuration, microbatches = model.configuration, model.configuration.microbatches
    once = parameter_time(configuration, model.itemsize, model.cluster, update=model.update)
    settings = configuration.memory_settings(model.itemsize, update=model.update)
    state = sum(state_bytes(_SAMPLE, _SAMPLE, settings)) / (_SAMPLE * model.itemsize)
    flight = max(configuration.flights())
    shared = microbatches * model.itemsize / configuration.gradient_bytes(model.itemsize)
    return Question(
        size=configuration.micro_batch_size,
        tp=configuration.mesh.tp,
        recompute=model.point.levels[index],
        spread=max(1, math.ceil(shared)),
        alpha=weight,
        state_ratio=state / flight,
        once=once / microbatches,
    )


def _alternative(
    model: PlannedModel,
    choice: str,
    changed: Mapping[int, BlockSolution],
    priced: Priced,
    local: str,
) -> Alternative:
    """The plan with other solutions of some classes."""
    others = {
        name: str(placement)
        for index, solution in changed.items()
        for name, (placement, _) in solution.placements.items()
        if name != local and placement != model.point.solutions[index].placements[name][0]
    }
    return Alternative(
        choice=choice,
        step_time=priced.step_time,
        peak_memory=priced.peak_memory,
        fits=priced.peak_memory <= model.plan.prediction.memory_limit,
        changed=tuple(others.items()),
    )


def _ranked(alternatives: Sequence[Alternative]) -> tuple[Alternative, ...]:
    return tuple(sorted(alternatives, key=lambda found: (not found.fits, found.step_time)))


def _terms(model: PlannedModel, index: int) -> BlockTerms:
    chosen = model.point.solutions[index].strategies
    ends = model.point.boundaries[index]
    return block_terms(model.graph.classes[index], chosen, *ends, model.group, model.cluster)


def _operator_terms(model: PlannedModel, index: int, ops: Sequence[Op]) -> tuple[OperatorTerm, ...]:
    block, chosen = model.graph.classes[index], model.point.solutions[index].strategies
    wanted = {op.name for op in ops}
    return tuple(
        OperatorTerm(
            name=op.name,
            target=op.target,
            strategy=str(chosen[op.name]),
            forward=term.forward,
            backward=term.backward,
        )
        for op, term in zip(block.ops, _terms(model, index).ops, strict=True)
        if op.name in wanted
    )


def _collective_terms(
    model: PlannedModel, index: int, names: set[str], ops: Sequence[Op]
) -> list[CollectiveTerm]:
    """Collectives inside operators, and conversions of the tensors that they read and make."""
    if model.group.ranks == 1:
        return []
    chosen = model.point.solutions[index].strategies
    found = [
        CollectiveTerm(
            what=f"inside {op.name}",
            kind=inner.kind.value,
            when="backward" if inner.backward else "forward",
            payload=inner.payload,
            seconds=collective_time(inner.kind, inner.payload, model.group, model.cluster),
        )
        for op in ops
        for inner in chosen[op.name].inner
    ]
    for term in _terms(model, index).conversions:
        if term.tensor not in names or term.produced == term.required:
            continue
        made = term.resharding
        for kind, when, seconds in (
            (made.forward_kind, "forward", made.forward),
            (made.backward_kind, "backward", made.backward),
        ):
            if kind is not None:
                found.append(
                    CollectiveTerm(
                        what=f"{term.tensor}: {term.produced} as {term.required}",
                        kind=kind.value,
                        when=when,
                        payload=made.payload,
                        seconds=seconds,
                    )
                )
    return found


def _name(model: PlannedModel, index: int) -> str:
    return next(i.name for i in model.graph.instances if i.block_class == index)


def _count(model: PlannedModel, index: int) -> int:
    return sum(i.block_class == index for i in model.graph.instances)
