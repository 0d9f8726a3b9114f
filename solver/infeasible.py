"""Why nothing fits: the least-memory plan, the shortfall, what holds most, and what does fit."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.memory import state_bytes
from autoplan.errors import Detail, InfeasibleError, SolverLimitError
from autoplan.ir.graph import dtype_size
from autoplan.solver.between import local_counts
from autoplan.solver.candidates import Problem
from autoplan.solver.changes import BUDGET, Tried, fitting_changes
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.pieces import pieces
from autoplan.solver.pricing import Overflow
from autoplan.solver.space import Configuration, Pins
from autoplan.units import format_bytes, format_time

__all__ = ["BlockShare", "block_shares", "infeasible_error", "leanest"]

_LEANEST = 12
_SECONDS = 8.0
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShare:
    """Bytes that blocks with like names hold on a rank: training state, and kept activations."""

    name: str
    blocks: int
    state: int
    kept: int


def infeasible_error(
    searcher: Searcher,
    space: Sequence[Configuration],
    outcome: Outcome,
    pins: Pins,
    *,
    suggest: bool,
) -> InfeasibleError:
    """Error with the shortfall in bytes and who holds most.

    To ``suggest`` them, with the cheapest changes that fit.
    """
    problem = searcher.problem
    least = leanest(searcher, space, outcome)
    nothing = Tried(fitting=(), failing=(), untried=())
    tried = fitting_changes(searcher, pins) if suggest else nothing
    hint = (
        "fits with: "
        + "; or ".join(
            f"{found.text} ({found.priced.label()}: {format_time(found.priced.step_time)} a step)"
            for found in tried.fitting[:_SHOWN]
        )
        if tried.fitting
        else _nothing_fits(tried.failing)
    )
    details: dict[str, Detail] = {
        "memory_limit": problem.memory_limit,
        "changes": [
            {
                "change": change.text,
                "step_time": change.priced.step_time,
                "peak_memory": change.priced.peak_memory,
                "plan": change.priced.label(),
            }
            for change in tried.fitting
        ],
        "failing_changes": [*tried.failing],
        "untried_changes": [*tried.untried],
        "change_seconds": BUDGET,
    }
    if isinstance(least, int):
        return InfeasibleError(
            f"no plan fits: every configuration needs more than the "
            f"{format_bytes(problem.memory_limit)} usable, the leanest at least "
            f"{format_bytes(least)}",
            hint=hint,
            details={"needed": least, "shortfall": least - problem.memory_limit, **details},
        )
    shortfall = least.peak_memory - problem.memory_limit
    parts: dict[str, int] = {
        name: getattr(least.memory, name)
        for name in ("parameters", "gradients", "optimizer", "activations", "transient", "buffers")
    }
    largest = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])[:2]
    shares = block_shares(least, problem)
    most = " and ".join(f"{name} {format_bytes(parts[name])}" for name in largest)
    limit = format_bytes(problem.memory_limit)
    return InfeasibleError(
        f"no plan fits: the leanest ({least.label()}) needs "
        f"{format_bytes(least.peak_memory)} a rank, {limit} are usable on "
        f"{problem.cluster.accelerator.name}: {format_bytes(shortfall)} ({shortfall} bytes) short; "
        f"most of it {most}, in {_share_text(shares[0])}",
        hint=hint,
        details={
            "needed": least.peak_memory,
            "shortfall": shortfall,
            "configuration": least.label(),
            "memory": {**parts},
            "blocks": [
                {"name": s.name, "blocks": s.blocks, "state": s.state, "kept": s.kept}
                for s in shares
            ],
            **details,
        },
    )


def _nothing_fits(failing: Sequence[str]) -> str:
    shorter = "try a shorter --seq-len"
    if not failing:
        return f"{shorter} or a larger device"
    return f"no single change tried fits: {', '.join(failing)}; {shorter}"


def _share_text(share: BlockShare) -> str:
    blocks = f" ({share.blocks} blocks)" if share.blocks > 1 else ""
    return f"{share.name}{blocks} {format_bytes(share.state + share.kept)}"


def block_shares(least: Overflow, problem: Problem) -> list[BlockShare]:
    """What blocks of the fullest pipeline rank hold, those with like names together, most first.

    A parameter of several blocks counts with the first; kept is by the microbatches in flight.
    """
    graph, configuration, point = least.graph, least.configuration, least.point
    rank = max(range(len(least.stages)), key=lambda index: least.stages[index].peak)
    held = [
        (instance, flight)
        for (first, last), flight, on in zip(
            least.ranges, configuration.flights(), configuration.ranks_of_stages, strict=True
        )
        if on == rank
        for instance in graph.instances[first:last]
    ]
    memories = pieces(graph, configuration, point, problem.cluster).memories
    settings = configuration.memory_settings(
        dtype_size(graph.dtype), update=problem.update, host=problem.cluster.accelerator.synchronous
    )
    trainable = {p.fqn: p.trainable for p in graph.parameters}
    found: dict[str, BlockShare] = {}
    seen: set[str] = set()
    for instance, flight in held:
        own = {f: n for f, n in local_counts(point, instance).items() if f not in seen}
        seen.update(own)
        learnt = sum(count for fqn, count in own.items() if trainable[fqn])
        name = re.sub(r"(?<![^.])\d+(?![^.])", "*", instance.name)
        before = found.get(name, BlockShare(name=name, blocks=0, state=0, kept=0))
        found[name] = BlockShare(
            name=name,
            blocks=before.blocks + 1,
            state=before.state + sum(state_bytes(sum(own.values()), learnt, settings)[:3]),
            kept=before.kept + flight * memories[instance.block_class].kept,
        )
    return sorted(found.values(), key=lambda share: -(share.state + share.kept))


def leanest(searcher: Searcher, space: Sequence[Configuration], outcome: Outcome) -> Overflow | int:
    """The plan that needs the least memory, or only the least bytes that any needs."""
    searcher.extend_deadline(time.monotonic() + _SECONDS)
    lean = sorted(space, key=searcher.memory_needed)[:_LEANEST]
    overflows = list(outcome.overflows)
    for configuration in lean:
        try:
            result = searcher.result(configuration)
        except SolverLimitError:
            break
        if isinstance(result, Overflow):
            overflows.append(result)
    if not overflows:
        return searcher.memory_needed(lean[0])
    return min(overflows, key=lambda overflow: overflow.peak_memory)
