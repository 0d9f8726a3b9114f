"""A plan file as the solver's own types again, to be priced as it is or with a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoplan.costs.block import block_cost
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group, Mesh
from autoplan.ir.optimizer import UpdateRule, update_rule
from autoplan.ir.placement import Replicate, Shard, parse_placement
from autoplan.ir.plan import Plan
from autoplan.ir.recompute import Recompute
from autoplan.ir.record import graph_from_record, strategies_from_record
from autoplan.solver.blocks import BlockPricer, ModelPoint
from autoplan.solver.frames import Frame, shared_parameters
from autoplan.solver.inter import StageCut
from autoplan.solver.intra import BlockSolution
from autoplan.solver.linear import Termination
from autoplan.solver.placement_pins import parse_placement_pin, pinned_storage
from autoplan.solver.pricing import Appraisal, Priced
from autoplan.solver.space import PIN_NAMES, Configuration
from autoplan.solver.timing import Simulator

__all__ = ["PlannedModel", "plan_pins"]

_UNLIMITED = 2**60


def plan_pins(plan: Plan) -> tuple[dict[str, str], list[str], str | None]:
    """What the user fixed: decisions by name, placements of parameters, stages."""
    values = {pin.name: pin.value for pin in plan.pins if pin.name in PIN_NAMES}
    stages = next((pin.value for pin in plan.pins if pin.name == "stages"), None)
    others = [pin for pin in plan.pins if pin.name not in (*PIN_NAMES, "stages")]
    return values, [f"{pin.name}={pin.value}" for pin in others], stages


class PlannedModel:
    """What a plan chose, by class of blocks, and prices of the plan with other choices."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan = plan
        self.cluster = cluster
        self.graph: Graph = graph_from_record(plan.graph)
        self.update: UpdateRule = update_rule(
            plan.workload.optimizer, master=plan.workload.master_weights == "float32"
        )
        self.configuration = Configuration(
            mesh=Mesh(**plan.mesh.model_dump()),
            micro_batch_size=plan.pipeline.micro_batch_size,
            microbatches=plan.pipeline.microbatches,
            zero=plan.zero,
            schedule=plan.pipeline.schedule,
            virtual_stages=plan.virtual_stages,
        )
        self.pinned = pinned_storage(
            self.graph, [parse_placement_pin(text) for text in plan_pins(plan)[1]]
        )
        pricer = BlockPricer({plan.graph.micro_batch_size: self.graph}, cluster)
        self.pricer = pricer.storing(self.pinned)
        self.stored = {p.fqn: parse_placement(p.placement) for p in plan.graph.parameters}
        self.frame = self._frame()
        self.point = self._point()
        self._cut = StageCut.given(tuple((s.first, s.last) for s in plan.pipeline.stages))
        self._simulator = Simulator(cluster, self.update)

    @property
    def group(self) -> Group:
        """Ranks that share a block."""
        return self.pricer.group(self.configuration.mesh.tp)

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the compute dtype."""
        return dtype_size(self.graph.dtype)

    def priced(self, changed: Mapping[int, BlockSolution] | None = None) -> Priced:
        """The plan, with other solutions of some classes, whether it fits or not."""
        point = self.point
        for index, solution in (changed or {}).items():
            cost = block_cost(
                self.graph.classes[index],
                solution.strategies,
                *point.boundaries[index],
                self.group,
                self.cluster,
            )
            solutions, costs = list(point.solutions), list(point.costs)
            solutions[index], costs[index] = solution, cost
            point = replace(point, solutions=tuple(solutions), costs=tuple(costs))
        appraisal = Appraisal(
            self.graph,
            self.configuration,
            point,
            self.cluster,
            update=self.update,
            cut=self._cut,
        )
        found = appraisal.found(memory_limit=_UNLIMITED)
        assert isinstance(found, Priced)
        return self._simulator.timed(found)

    def _frame(self) -> Frame:
        """What the plan's classes agree on."""
        ends = [end for block in self.plan.graph.classes for end in block.boundary_out]
        sharded = [p for p in map(parse_placement, ends) if isinstance(p, Shard)]
        tied = {fqn: self.stored[fqn] for fqn in shared_parameters(self.graph)}
        return Frame(sharded[0] if sharded else Replicate(), tuple(sorted(tied.items())))

    def _point(self) -> ModelPoint:
        strategies = strategies_from_record(self.plan.graph)
        ends = tuple(
            (
                tuple(map(parse_placement, block.boundary_in)),
                tuple(map(parse_placement, block.boundary_out)),
            )
            for block in self.plan.graph.classes
        )
        partial = {p.fqn: p.partial_grad for p in self.plan.graph.parameters}
        first = {i.block_class: i for i in reversed(self.graph.instances)}
        solutions = tuple(
            BlockSolution(
                strategies=chosen,
                placements={
                    local: (self.stored[fqn], partial[fqn])
                    for local, fqn in zip(block.parameters, first[index].parameters, strict=True)
                },
                objective=0.0,
                bound=0.0,
                termination=Termination.OPTIMAL,
                relaxation_integral=True,
                variables=0,
                build_time=0.0,
                solve_time=0.0,
            )
            for index, (block, chosen) in enumerate(
                zip(self.graph.classes, strategies, strict=True)
            )
        )
        return ModelPoint(
            frame=self.frame,
            boundaries=ends,
            levels=tuple(Recompute(block.recompute) for block in self.plan.graph.classes),
            solutions=solutions,
            costs=tuple(
                block_cost(block, s.strategies, *sides, self.group, self.cluster)
                for block, s, sides in zip(self.graph.classes, solutions, ends, strict=True)
            ),
            microbatch_bound=0.0,
        )
