"""Plans of a small GPT whose blocks differ, made by hand from points that the solver found."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.capture import Captured
from autoplan.ir.graph import Graph
from autoplan.ir.mesh import Mesh
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.ir.recompute import Recompute
from autoplan.solver.assemble import assemble
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.explore import Outcome, Searcher
from autoplan.solver.mixture import Mixture
from autoplan.solver.pricing import Priced
from autoplan.solver.space import Configuration
from autoplan.solver.timing import Simulator
from autoplan.solver.variants import pick_points

ADAMW = UPDATE_RULES["adamw"]
LEVELS = tuple(Recompute)


def configuration(mesh: Mesh, *, zero: int = 0, size: int = 2, batch: int = 8) -> Configuration:
    return Configuration(
        mesh=mesh,
        micro_batch_size=size,
        microbatches=batch // mesh.dp // size,
        zero=zero,
        schedule="1f1b" if mesh.pp > 1 else "none",
    )


def uniform(searcher: Searcher, one: Configuration, level: Recompute) -> Priced:
    priced = searcher.mixed(one, [searcher.point(one, level=level)])
    assert isinstance(priced, Priced)
    return priced


def repriced(searcher: Searcher, one: Configuration, graph: Graph, point: ModelPoint) -> Priced:
    problem = searcher.problem
    mixture = Mixture(graph, one, [point], problem.cluster, update=ADAMW)
    priced = mixture.best(problem.memory_limit)
    assert isinstance(priced, Priced)
    return priced


def mixed(searcher: Searcher, one: Configuration, levels: Sequence[Recompute]) -> Priced:
    """Price of a configuration in which block ``i`` has ``levels[i]``."""
    graph = searcher.problem.graphs[one.micro_batch_size]
    points = [uniform(searcher, one, level).point for level in LEVELS]
    picked = pick_points(graph, points, [LEVELS.index(level) for level in levels])
    return repriced(searcher, one, *picked)


def plan_of(captured: Captured, searcher: Searcher, priced: Priced) -> Plan:
    problem = searcher.problem
    simulator = Simulator(problem.cluster, ADAMW)
    timed = simulator.timed(priced)
    dtype = priced.graph.dtype
    return assemble(
        captured.record(),
        WorkloadRecord(
            global_batch=problem.global_batch, seq_len=32, dtype=dtype, optimizer="adamw"
        ),
        problem.cluster,
        (),
        Outcome(best=timed, lower_bound=timed.step_time, priced=[timed]),
        [],
        simulator,
        problem.memory_limit,
    )
