"""Strategies of a block's operators at the least cost: questions, and programs kept for them.

A program belongs to a block, a group of ranks, placements at the block's ends and of its tied
parameters, and a level of recompute. Questions differ in what bytes are worth.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.errors import AutoplanError, InfeasibleError, InternalError, SolverLimitError
from autoplan.ir.graph import BlockClass
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.formulation import Formulation, Setting
from autoplan.solver.linear import Termination
from autoplan.solver.lp import Handover
from autoplan.solver.problem import Weights
from autoplan.solver.program import Assignment, ChoiceProgram
from autoplan.units import format_bytes

__all__ = ["BlockProgram", "BlockPrograms", "BlockSolution", "Setting"]

_ROOM = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSolution:
    """Strategies of a block's operators, by name.

    ``placements`` maps each parameter's local name to its storage and whether its gradient
    is partial. ``objective`` is seconds of one microbatch, weighted memory included, and
    ``bound`` what no choice can beat. The other times are seconds spent finding it.
    """

    strategies: Mapping[str, OpStrategy]
    placements: Mapping[str, tuple[Placement, bool]]
    objective: float
    bound: float
    termination: Termination
    relaxation_integral: bool
    variables: int
    build_time: float
    solve_time: float


class BlockProgram:
    """The program of a block in a setting, for any number of questions."""

    def __init__(self, block: BlockClass, group: Group, cluster: Cluster, setting: Setting) -> None:
        self._block = block
        self._limit = setting.memory_limit
        self._form = Formulation(block, group, cluster, setting)
        self._program = ChoiceProgram(self._form.problem())
        self.size = self._program.size
        """Bytes it takes, about."""

    def solve(
        self, weights: Weights, *, deadline: float, handover: Handover = Handover.ARRAYS
    ) -> BlockSolution:
        """Strategies with the least time for one microbatch, forward and backward.

        ``weights`` are seconds for a local byte of parameters (stored), for a byte of a parameter
        whose gradient is partial (summed), and for a byte kept from forward to backward (held).
        ``deadline`` is a `time.monotonic` instant.
        """
        found = self._program.solve(weights, deadline=deadline, handover=handover)
        if not found.choices:
            raise _no_solution(self._block, found, self._limit)
        return BlockSolution(
            strategies=self._form.strategies(found.choices),
            placements=self._form.placements(found.choices),
            objective=found.objective,
            bound=found.bound,
            termination=found.termination,
            relaxation_integral=found.relaxation_integral,
            variables=found.variables,
            build_time=found.build_time,
            solve_time=found.solve_time,
        )

    def bound(self, weights: Weights, *, deadline: float) -> float:
        """Objective that no strategies are below at those weights."""
        return self._program.bound(weights, deadline=deadline)


class BlockPrograms:
    """The programs used last, within ``room`` bytes; a question builds its own where it is not."""

    def __init__(self, cluster: Cluster, *, room: int = _ROOM) -> None:
        self._cluster = cluster
        self._room = room
        self._kept: OrderedDict[tuple[int, Group, Setting], BlockProgram] = OrderedDict()
        self.size = 0
        """Bytes of the programs that are kept, about."""
        self.asked = 0
        self.built = 0
        self.integral = 0

    def solve(
        self, block: BlockClass, group: Group, setting: Setting, weights: Weights, deadline: float
    ) -> BlockSolution:
        """Answer of the block's program (`BlockProgram.solve`)."""
        solution = self._program(block, group, setting).solve(weights, deadline=deadline)
        self.integral += solution.relaxation_integral
        return solution

    def bound(
        self, block: BlockClass, group: Group, setting: Setting, weights: Weights, deadline: float
    ) -> float:
        """Bound of the block's program (`BlockProgram.bound`)."""
        return self._program(block, group, setting).bound(weights, deadline=deadline)

    def _program(self, block: BlockClass, group: Group, setting: Setting) -> BlockProgram:
        self.asked += 1
        key = (id(block), group, setting)  # a program holds its block, so the id stays its own
        program = self._kept.get(key)
        if program is None:
            program = BlockProgram(block, group, self._cluster, setting)
            self.built += 1
            self._kept[key] = program
            self.size += program.size
            while self.size > self._room and len(self._kept) > 1:
                self.size -= self._kept.popitem(last=False)[1].size
        self._kept.move_to_end(key)
        return program


def _no_solution(block: BlockClass, found: Assignment, memory_limit: int | None) -> AutoplanError:
    if found.termination is Termination.TIME_LIMIT:
        return SolverLimitError(
            f"the time limit passed before {block.name} had any placement",
            hint="raise --time-limit",
        )
    if found.termination is Termination.FAILED:
        return InternalError(f"HiGHS could not solve the placement of {block.name}")
    if memory_limit is not None:
        return InfeasibleError(
            f"no placement of {block.name} keeps its activations within "
            f"{format_bytes(memory_limit)}",
            hint="use --recompute full or a smaller --micro-batch-size",
        )
    return InfeasibleError(
        f"no placement of {block.name} agrees with its fixed parameters and boundary",
        hint="leave --tp to the planner, and drop a --pin if there is one",
    )
