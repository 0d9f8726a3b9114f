"""Plans that practitioners write by hand: always priced, always shown, never beaten by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.ir.hardware import Cluster
from autoplan.ir.recompute import recompute_levels
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.pricing import Priced
from autoplan.solver.space import Configuration, Pins
from autoplan.units import format_bytes

__all__ = ["Baseline", "adopt_better_baseline", "baseline_filters", "price_baselines"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline's best configuration, or why there is none."""

    name: str
    priced: Priced | None
    reason: str


BaselineFilter = Callable[[Configuration], bool]


def baseline_filters(cluster: Cluster) -> Mapping[str, BaselineFilter]:
    """Plans that practitioners write by hand, as subsets of the space."""
    node = min(cluster.ranks_per_node, cluster.ranks)
    if node == cluster.ranks and node > 2:
        node //= 2  # a whole-cluster tp leaves no rank for data parallelism

    def plain(c: Configuration) -> bool:
        return c.mesh.tp == 1 and c.mesh.pp == 1

    filters: dict[str, BaselineFilter] = {
        "ddp": lambda c: plain(c) and c.zero == 0,
        "fsdp (zero 3)": lambda c: plain(c) and c.zero == 3 and c.mesh.dp_replicate == 1,
    }
    if node > 1:
        filters[f"tp {node} + zero 1"] = lambda c: (
            c.mesh.tp == node and c.mesh.pp == 1 and c.zero <= 1
        )
        filters[f"tp {node} + fsdp"] = lambda c: (
            c.mesh.tp == node and c.mesh.pp == 1 and c.zero == 3 and c.mesh.dp_replicate == 1
        )
        filters[f"tp {node} + pp + zero 1, 1f1b"] = lambda c: (
            c.mesh.tp == node and c.mesh.pp > 1 and c.zero <= 1 and c.schedule == "1f1b"
        )
    return filters


def price_baselines(
    searcher: Searcher,
    space: Sequence[Configuration],
    deadline: float,
    progress: Callable[[str], None] | None,
) -> list[Baseline]:
    """Best configuration of each baseline in an unpinned ``space``."""
    problem = dataclasses.replace(
        searcher.problem,
        levels=recompute_levels(searcher.problem.graphs[1]),
        stored={},
        stages=(),
    )
    free = searcher if searcher.problem == problem else searcher.beside(problem)
    free.extend_deadline(deadline)
    found = []
    for name, accepts in baseline_filters(problem.cluster).items():
        if progress is not None:
            progress(f"baseline: {name}")
        subset = [c for c in space if accepts(c)]
        if not subset:
            found.append(Baseline(name, None, "not legal on this cluster and batch"))
            continue
        outcome = free.run(subset, phase=f"baseline {name}")
        found.append(Baseline(name, outcome.best, _reason(free, outcome, subset)))
    return found


def _reason(searcher: Searcher, outcome: Outcome, subset: list[Configuration]) -> str:
    if outcome.best is not None:
        return "" if outcome.termination == "optimal" else "best found within the time limit"
    if outcome.termination != "optimal":
        return "not priced within the time limit"
    limit = searcher.problem.memory_limit
    needed = min(
        [o.peak_memory for o in outcome.overflows]
        or [searcher.memory_needed(configuration) for configuration in subset]
    )
    relation = "needs" if outcome.overflows else "needs at least"
    return f"does not fit: {relation} {format_bytes(needed)} of {format_bytes(limit)}"


def adopt_better_baseline(outcome: Outcome, baselines: list[Baseline], pins: Pins) -> None:
    """Never return a plan slower than a baseline: matters when time ran out."""
    if pins.each():
        return
    for baseline in baselines:
        if baseline.priced is None:
            continue
        if outcome.best is None or baseline.priced.step_time < outcome.best.step_time:
            outcome.best = baseline.priced
            outcome.lower_bound = min(outcome.lower_bound, baseline.priced.step_time)
