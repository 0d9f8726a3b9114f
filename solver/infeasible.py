"""Why nothing fits: the least-memory plan, the shortfall, and changes that do fit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from autoplan.errors import Detail, InfeasibleError, SolverLimitError
from autoplan.ir.hardware import Cluster
from autoplan.solver.candidates import Problem
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.pricing import Overflow, Priced
from autoplan.solver.space import Configuration, Pins, configurations, permitted_levels
from autoplan.units import format_bytes, format_time

__all__ = ["infeasible_error"]

_LEANEST = 12
_NODE_FACTORS = (2, 4, 8, 16, 32)
_SECONDS_PER_CHANGE = 8.0


def infeasible_error(
    searcher: Searcher,
    space: Sequence[Configuration],
    outcome: Outcome,
    pins: Pins,
    *,
    suggest: bool,
) -> InfeasibleError:
    """Error with the shortfall in bytes and, to ``suggest`` them, the cheapest changes that fit."""
    problem = searcher.problem
    least = _least_memory(searcher, space, outcome)
    limit = problem.memory_limit
    shortfall = least.peak_memory - limit
    changes = _changes_that_fit(problem, pins) if suggest else []
    parts: dict[str, Detail] = {
        name: getattr(least.memory, name)
        for name in ("parameters", "gradients", "optimizer", "activations", "transient", "buffers")
    }
    largest = max(parts, key=lambda name: int(str(parts[name])))
    hint = (
        "fits with: " + "; or ".join(text for text, _ in changes)
        if changes
        else "try a shorter --seq-len or a larger device"
        + ("; no single change tried here fits" if suggest else "")
    )
    return InfeasibleError(
        f"no plan fits: the leanest ({least.label()}) needs "
        f"{format_bytes(least.peak_memory)} a rank, {format_bytes(limit)} are usable on "
        f"{problem.cluster.accelerator.name}: {format_bytes(shortfall)} ({shortfall} bytes) short, "
        f"most of it {largest}",
        hint=hint,
        details={
            "needed": least.peak_memory,
            "memory_limit": limit,
            "shortfall": shortfall,
            "configuration": least.label(),
            "memory": parts,
            "changes": [
                {"change": text, "step_time": priced.step_time} for text, priced in changes
            ],
        },
    )


def _least_memory(searcher: Searcher, space: Sequence[Configuration], outcome: Outcome) -> Overflow:
    searcher.extend_deadline(time.monotonic() + _SECONDS_PER_CHANGE)
    leanest = sorted(space, key=searcher.memory_needed)[:_LEANEST]
    overflows = list(outcome.overflows)
    for configuration in leanest:
        try:
            result = searcher.result(configuration)
        except SolverLimitError:
            break
        if isinstance(result, Overflow):
            overflows.append(result)
    if not overflows:
        needed = searcher.memory_needed(leanest[0])
        raise InfeasibleError(
            f"no plan fits: every configuration needs more than the usable memory, the leanest "
            f"({leanest[0].label()}) at least {format_bytes(needed)}",
            hint="use more ranks, or a larger device",
            details={"needed": needed, "memory_limit": searcher.problem.memory_limit},
        )
    return min(overflows, key=lambda overflow: overflow.peak_memory)


def _changes_that_fit(problem: Problem, pins: Pins) -> list[tuple[str, Priced]]:
    """Single changes, each verified by solving again: without pins, then with more nodes."""
    found: list[tuple[str, Priced]] = []
    for name in pins.allowed:
        freed = Pins({n: v for n, v in pins.allowed.items() if n != name})
        priced = _first_fit(problem, problem.cluster, freed)
        if priced is not None:
            found.append((_text(f"without --{name.replace('_', '-')}", priced), priced))
    for factor in _NODE_FACTORS:
        if found:
            break
        larger = dataclasses.replace(
            problem.cluster,
            nodes=problem.cluster.nodes * factor,
            spec=f"{problem.cluster.spec} x {factor}",
        )
        priced = _first_fit(problem, larger, pins)
        if priced is not None:
            found.append((_text(f"{larger.ranks} ranks", priced), priced))
    return found


def _text(change: str, priced: Priced) -> str:
    return f"{change} ({priced.label()}: {format_time(priced.step_time)} a step)"


def _first_fit(problem: Problem, cluster: Cluster, pins: Pins) -> Priced | None:
    changed = dataclasses.replace(
        problem,
        cluster=cluster,
        deadline=time.monotonic() + _SECONDS_PER_CHANGE,
        levels=permitted_levels(problem.graphs[1], pins),
    )
    space = list(
        configurations(
            ranks=cluster.ranks,
            global_batch=problem.global_batch,
            max_stages=len(problem.graphs[1].instances),
            pins=pins,
        )
    )
    return Searcher(changed).run(space).best
