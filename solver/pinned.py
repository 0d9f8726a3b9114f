"""What fixed decisions leave of a problem: its space, and what every configuration has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from autoplan.errors import UsageError
from autoplan.ir.graph import Graph
from autoplan.ir.recompute import Recompute
from autoplan.schedules import SPLIT
from autoplan.solver.candidates import Problem
from autoplan.solver.placement_pins import (
    degrees_that_take,
    parse_placement_pin,
    pinned_storage,
    require_parameters,
)
from autoplan.solver.space import Configuration, Pins, configurations, permitted_levels
from autoplan.solver.stage_pins import parse_stages

__all__ = ["model_pins", "pinned_problem", "pinned_space"]


def model_pins(pins: Pins, graph: Graph, placements: Sequence[str], stages: str | None) -> Pins:
    """The pins, and those that name parameters and blocks of a model."""
    found = tuple(dict.fromkeys(map(parse_placement_pin, placements)))
    require_parameters(graph, found)
    cut = () if stages is None else parse_stages(stages, graph)
    if cut and "pp" in pins and str(len(cut)) not in pins.allowed["pp"]:
        raise UsageError(
            f"--stages {stages} are {len(cut)}, --pp {','.join(pins.allowed['pp'])} are others",
            hint="leave --pp out: the stages say it",
        )
    return dataclasses.replace(pins, placements=found, stages=cut)


def pinned_problem(problem: Problem, pins: Pins, deadline: float) -> Problem:
    """The problem under other pins of the same model, to be solved until ``deadline``."""
    graph = problem.graphs[1]
    return dataclasses.replace(
        problem,
        levels=permitted_levels(graph, pins),
        stored=pinned_storage(graph, pins.placements),
        stages=pins.stages,
        deadline=deadline,
    )


def pinned_space(problem: Problem, pins: Pins) -> list[Configuration]:
    """Configurations that the pins permit and the runtime has."""
    graph = problem.graphs[1]
    found = [
        configuration
        for configuration in configurations(
            ranks=problem.cluster.ranks,
            global_batch=problem.global_batch,
            max_stages=len(graph.instances),
            pins=pins,
        )
        if _runs(configuration, problem)
    ]
    stored = pinned_storage(graph, pins.placements)
    degrees = dict.fromkeys(configuration.mesh.tp for configuration in found)
    taking = degrees_that_take(graph, stored, degrees, problem.cluster)
    return [configuration for configuration in found if configuration.mesh.tp in taking]


def _runs(configuration: Configuration, problem: Problem) -> bool:
    """Whether the runtime has the update rule and the schedule.

    FSDP2's shards are float32 masters themselves. Each part of a split backward would recompute
    again, and torch refuses to split those of compiled blocks.
    """
    if configuration.schedule in SPLIT and (
        problem.cluster.accelerator.compiled or problem.levels[0] is not Recompute.NONE
    ):
        return False
    return problem.update.master or configuration.zero <= 1
