"""Single changes of a problem in which nothing fits, each solved again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoplan.errors import UsageError
from autoplan.ir.graph import dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import update_rule
from autoplan.profiles import load_cluster
from autoplan.profiles.catalogue import larger_accelerators
from autoplan.solver.candidates import Problem
from autoplan.solver.explore import Searcher
from autoplan.solver.pinned import pinned_problem, pinned_space
from autoplan.solver.pricing import Priced
from autoplan.solver.space import Pins

__all__ = ["BUDGET", "Fitting", "Tried", "fitting_changes"]

BUDGET = 40.0
"""Seconds for all changes together."""

_SECONDS_PER_CHANGE = 8.0
_NODE_FACTORS = (2, 4, 8, 16, 32)
_MOST_DEVICES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    text: str
    problem: Problem
    pins: Pins


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """A change, and the best plan found with it."""

    text: str
    priced: Priced


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Changes with which a plan fits, the fastest first; with which none does; not tried."""

    fitting: tuple[Fitting, ...]
    failing: tuple[str, ...]
    untried: tuple[str, ...]


def fitting_changes(searcher: Searcher, pins: Pins, *, budget: float = BUDGET) -> Tried:
    """Single changes, each solved again under the pins that it leaves, for ``budget`` seconds.

    Of changes that are more of the same (nodes, memory of a device) only the first that fits
    counts.
    """
    deadline = time.monotonic() + budget
    fitting: list[Fitting] = []
    failing: list[str] = []
    untried: list[str] = []
    for family in _families(searcher.problem, pins):
        for change in family:
            left = deadline - time.monotonic()
            if left <= 0.0:
                untried.append(change.text)
                continue
            until = time.monotonic() + min(left, _SECONDS_PER_CHANGE)
            changed = pinned_problem(change.problem, change.pins, until)
            space = pinned_space(changed, change.pins)
            if not space or not changed.levels:
                continue
            same = searcher.answers.serves(changed)
            beside = searcher.beside(changed) if same else Searcher(changed)
            outcome = beside.run(space)
            if outcome.termination == "interrupted":
                raise KeyboardInterrupt
            if outcome.best is not None:
                fitting.append(Fitting(text=change.text, priced=outcome.best))
                break
            (failing if outcome.termination == "optimal" else untried).append(change.text)
    ranked = sorted(fitting, key=lambda found: found.priced.step_time)
    return Tried(fitting=tuple(ranked), failing=tuple(failing), untried=tuple(untried))


def _families(problem: Problem, pins: Pins) -> Iterator[list[_Change]]:
    """Changes in the order of trying them; those of a list are more and more of the same."""
    for pin in pins.each():
        yield [_Change(text=f"without {pin.option}", problem=problem, pins=pins.without(pin))]
    usable = problem.cluster.accelerator.usable_memory
    if problem.memory_limit < usable:
        larger = replace(problem, memory_limit=usable)
        yield [_Change(text="without --memory-limit", problem=larger, pins=pins)]
    if "zero" not in pins and problem.update.master:
        # In pipelines the space has it only when asked for.
        allowed = replace(pins, allowed={**pins.allowed, "zero": ("3",)})
        yield [_Change(text="--zero 3", problem=problem, pins=allowed)]
    yield from _smaller_states(problem, pins)
    yield _larger_devices(problem, pins)
    yield _more_nodes(problem, pins)


def _smaller_states(problem: Problem, pins: Pins) -> Iterator[list[_Change]]:
    update = problem.update
    if update.name == "adamw":
        smaller = replace(problem, update=update_rule("adamw-8bit", master=update.master))
        yield [_Change(text="--optimizer adamw-8bit", problem=smaller, pins=pins)]
    if update.is_adam and update.master and dtype_size(problem.graphs[1].dtype) < 4:
        smaller = replace(problem, update=update_rule(update.name, master=False))
        yield [_Change(text="--master-weights none", problem=smaller, pins=pins)]


def _larger_devices(problem: Problem, pins: Pins) -> list[_Change]:
    """As many devices of the catalogue's next larger memories, where a node takes so many."""
    cluster = problem.cluster
    found: list[_Change] = []
    for name in larger_accelerators(cluster.accelerator.name):
        if len(found) == _MOST_DEVICES:
            break
        spec = f"{cluster.nodes}x{cluster.ranks_per_node}x{name}"
        try:
            other = load_cluster(spec)
        except UsageError:
            continue
        device = replace(other.accelerator, compiled=cluster.accelerator.compiled)
        larger = replace(
            problem,
            cluster=replace(other, accelerator=device),
            memory_limit=device.usable_memory,
        )
        found.append(_Change(text=f"--cluster {spec}", problem=larger, pins=pins))
    return found


def _more_nodes(problem: Problem, pins: Pins) -> list[_Change]:
    return [
        _Change(text=f"{larger.ranks} ranks", problem=replace(problem, cluster=larger), pins=pins)
        for larger in (_times(problem.cluster, factor) for factor in _NODE_FACTORS)
    ]


def _times(cluster: Cluster, factor: int) -> Cluster:
    return replace(cluster, nodes=cluster.nodes * factor, spec=f"{cluster.spec} x {factor}")
