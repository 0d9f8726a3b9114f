"""Placements inside one block: operators' strategies into the choice problem and back.

Nodes of the problem (see `problem`): each operator chooses a strategy and pays its compute
and inner collectives; each parameter chooses its storage and pays for its bytes; boundary
inputs, and one sink for each boundary output, have a single choice. A value's conversions
cost what the collectives of the placement algebra cost, forward and backward together.
A stored ``R`` used as ``R*`` pays the sum of its partial gradients once; a parameter is never
converted otherwise. Bytes that autograd keeps are stores, held by every operator that saves
them: the storage a tensor was made in (its own, or that of the tensor it views), whole or
sharded, or a converted copy. A view of a converted copy counts as one of the original, which
is the only way in which these bytes differ from `autoplan.costs.liveness`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autoplan.costs.compute import OpTime, local_bytes, local_extra
from autoplan.costs.resharding import Resharding, conversion_time
from autoplan.costs.terms import op_term, required_states
from autoplan.errors import AutoplanError, InfeasibleError, InternalError, SolverLimitError
from autoplan.ir.graph import BlockClass, Op, Tensor, TensorKind
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.lp import Handover, Termination
from autoplan.solver.offers import offers
from autoplan.solver.problem import Node, NodeHolder, Problem, Store, Use, UseHolder, Value
from autoplan.solver.program import Assignment, solve_problem
from autoplan.units import format_bytes

__all__ = ["BlockSolution", "solve_block"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One strategy: state required by each input slot, and seconds by direction."""

    strategy: OpStrategy
    states: tuple[Placement, ...]
    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class _Prices:
    """Priced strategies of each operator, and conversions as they are asked for."""

    choices: tuple[tuple[_Choice, ...], ...]
    conversions: dict[tuple[str, Placement, Placement], Resharding | None]


@by_identity(2048)
def _prices(block: BlockClass, group: Group, cluster: Cluster) -> _Prices:
    """Prices that do not depend on the question asked."""
    return _Prices(
        tuple(
            tuple(_price(op, block, strategy, time, group, cluster) for strategy, time in offered)
            for op, offered in zip(
                block.ops, offers(block, group.ranks, cluster.accelerator), strict=True
            )
        ),
        {},
    )


def _price(
    op: Op, block: BlockClass, strategy: OpStrategy, time: OpTime, group: Group, cluster: Cluster
) -> _Choice:
    term = op_term(op, block, strategy, group, cluster, time=time)
    return _Choice(
        strategy=strategy,
        states=required_states(op, block, strategy),
        forward=term.forward + term.tp_forward,
        backward=term.backward + term.tp_backward,
    )


def solve_block(
    block: BlockClass,
    group: Group,
    cluster: Cluster,
    *,
    boundary_in: Sequence[Placement],
    boundary_out: Sequence[Placement],
    fixed: Mapping[str, Placement],
    recompute: bool,
    parameter_cost: float,
    partial_grad_cost: float,
    memory_limit: int | None,
    memory_weight: float = 0.0,
    deadline: float,
    handover: Handover = Handover.ARRAYS,
) -> BlockSolution:
    """Strategies with the least time for one microbatch, forward and backward.

    ``fixed`` gives the storage of some parameters (tied ones). ``parameter_cost`` is seconds
    per local byte of parameters, ``partial_grad_cost`` seconds per byte of a parameter whose
    gradient is partial, ``memory_weight`` seconds per byte kept from forward to backward and
    ``memory_limit`` the most of those bytes. With ``recompute`` the forward pass is paid
    twice and nothing but the boundary is kept. ``deadline`` is a `time.monotonic` instant.
    """
    start = time.monotonic()
    form = _Formulation(
        block=block,
        group=group,
        cluster=cluster,
        prices=_prices(block, group, cluster),
        forward_passes=2 if recompute else 1,
        partial_grad_cost=partial_grad_cost,
    )
    form.add_operators()
    form.add_parameters(fixed, parameter_cost)
    form.add_boundary(boundary_in, boundary_out)
    problem = form.problem(
        memory_weight=0.0 if recompute else memory_weight,
        memory_limit=None if recompute else memory_limit,
    )
    formed = time.monotonic() - start
    found = solve_problem(problem, deadline=deadline, handover=handover)
    if not found.choices:
        raise _no_solution(block, found, memory_limit)
    return form.solution(found, build_time=found.build_time + formed)


class _Formulation:
    """The choice problem of a block, built node by node."""

    def __init__(
        self,
        *,
        block: BlockClass,
        group: Group,
        cluster: Cluster,
        prices: _Prices,
        forward_passes: int,
        partial_grad_cost: float,
    ) -> None:
        self._block = block
        self._group = group
        self._cluster = cluster
        self._choices = prices.choices
        self._conversions = prices.conversions
        self._passes = forward_passes
        self._partial_grad_cost = partial_grad_cost
        self._nodes: list[Node] = []
        self._storages: dict[str, tuple[int, tuple[Placement, ...]]] = {}
        # By tensor: its producer with the placement each choice makes, and its readers.
        self._made: dict[str, tuple[int, tuple[Placement, ...]]] = {}
        self._read: dict[str, list[tuple[int, tuple[Placement, ...]]]] = {}
        self._last_use: dict[tuple[str, int], int] = {}
        self._codes: dict[str, dict[Placement, int]] = {}

    def add_operators(self) -> None:
        """One node for each operator, one choice for each strategy."""
        for op, choices in zip(self._block.ops, self._choices, strict=True):
            costs = tuple(self._passes * c.forward + c.backward for c in choices)
            node = self._node(op.name, costs)
            for index, name in enumerate(op.outputs):
                self._made[name] = (node, tuple(c.strategy.outputs[index] for c in choices))
            for slot, name in enumerate(op.inputs):
                self._reads(name, node, tuple(c.states[slot] for c in choices))

    def add_parameters(self, fixed: Mapping[str, Placement], cost: float) -> None:
        """One node for each parameter, one choice for each storage that some reader takes."""
        for name in self._block.parameters:
            if name in fixed:
                options: tuple[Placement, ...] = (fixed[name],)
            else:
                wanted = [state for _, states in self._read.get(name, ()) for state in states]
                shards = dict.fromkeys(state for state in wanted if isinstance(state, Shard))
                options = (Replicate(), *shards)
            tensor = self._block.tensor(name)
            costs = tuple(cost * local_bytes(tensor, p, self._group.ranks) for p in options)
            node = self._node(name, costs)
            self._made[name] = (node, options)
            self._storages[name] = (node, options)

    def add_boundary(self, ins: Sequence[Placement], outs: Sequence[Placement]) -> None:
        """One-choice nodes: what the previous block hands over, and what the next one gets."""
        for name, placement in zip(self._block.inputs, ins, strict=True):
            self._made[name] = (self._node(name, (0.0,)), (placement,))
        for index, (name, placement) in enumerate(zip(self._block.outputs, outs, strict=True)):
            self._reads(name, self._node(f"output {index}", (0.0,)), (placement,))
        for name in (*self._block.buffers, *self._block.shared):
            self._made[name] = (self._node(name, (0.0,)), (Replicate(),))

    def problem(self, *, memory_weight: float, memory_limit: int | None) -> Problem:
        """The finished problem."""
        names = [name for name in self._made if self._read.get(name)]
        values = tuple(self._value(name) for name in names)
        with_stores = memory_weight > 0 or memory_limit is not None
        return Problem(
            tuple(self._nodes),
            values,
            self._stores(names) if with_stores else (),
            memory_weight,
            memory_limit,
        )

    def solution(self, found: Assignment, *, build_time: float) -> BlockSolution:
        """The answer in terms of the block."""
        chosen = {
            op.name: choices[pick].strategy
            for op, choices, pick in zip(
                self._block.ops, self._choices, found.choices, strict=False
            )
        }
        placements = {}
        for name, (node, options) in self._storages.items():
            storage = options[found.choices[node]]
            partial = any(
                states[found.choices[reader]] == Replicate(True)
                for reader, states in self._read.get(name, ())
            )
            placements[name] = (storage, partial)
        return BlockSolution(
            strategies=chosen,
            placements=placements,
            objective=found.objective,
            bound=found.bound,
            termination=found.termination,
            relaxation_integral=found.relaxation_integral,
            variables=found.variables,
            build_time=build_time,
            solve_time=found.solve_time,
        )

    def _node(self, name: str, costs: tuple[float, ...]) -> int:
        self._nodes.append(Node(name, costs))
        return len(self._nodes) - 1

    def _reads(self, name: str, node: int, states: tuple[Placement, ...]) -> None:
        uses = self._read.setdefault(name, [])
        self._last_use[name, node] = len(uses)
        uses.append((node, states))

    def _value(self, name: str) -> Value:
        producer, made = self._made[name]
        codes = self._codes.setdefault(name, {})
        uses = tuple(
            Use(node, tuple(codes.setdefault(state, len(codes)) for state in states))
            for node, states in self._read[name]
        )
        wanted = tuple(codes)
        produced = tuple(codes.setdefault(placement, len(codes)) for placement in made)
        conversions = {}
        for source in dict.fromkeys(made):
            for target in wanted:
                cost = self._conversion(self._block.tensor(name), source, target)
                if cost is not None:
                    conversions[codes[source], codes[target]] = cost
        return Value(producer, produced, uses, conversions)

    def _conversion(self, tensor: Tensor, source: Placement, target: Placement) -> float | None:
        if tensor.kind is TensorKind.PARAMETER:
            if target == Replicate(True) and source == Replicate():
                return self._partial_grad_cost * tensor.size
            return 0.0 if source == target else None
        key = (tensor.name, source, target)
        if key not in self._conversions:
            self._conversions[key] = conversion_time(
                tensor, source, target, self._group, self._cluster
            )
        times = self._conversions[key]
        if times is None:
            return None
        return self._passes * times.forward + times.backward

    def _stores(self, names: Sequence[str]) -> tuple[Store, ...]:
        """One store for each storage that some operator may save, as `liveness` counts them."""
        position = {name: index for index, name in enumerate(names)}
        holders: dict[_Storage, list[NodeHolder | UseHolder]] = {}
        for node, (op, choices) in enumerate(zip(self._block.ops, self._choices, strict=True)):
            for name in dict.fromkeys(op.saved):
                if name in op.outputs:
                    made = [c.strategy.outputs[op.outputs.index(name)] for c in choices]
                    for storage, picks in _grouped(map(self._own, [name] * len(made), made)):
                        holders.setdefault(storage, []).append(NodeHolder(node, picks))
                elif name in op.inputs:
                    use = self._last_use[name, node]
                    for storage, pairs in self._read_storages(name, use).items():
                        holder = UseHolder(position[name], use, frozenset(pairs))
                        holders.setdefault(storage, []).append(holder)
            if op.saved_extra:
                sizes = [
                    local_extra(op, self._block, c.strategy, self._group.ranks) for c in choices
                ]
                for size, picks in _grouped(sizes):
                    holders[op.name, "extra", size] = [NodeHolder(node, picks)]
        return tuple(
            Store(size, tuple(needing)) for (_, _, size), needing in holders.items() if size
        )

    def _read_storages(self, name: str, use: int) -> dict[_Storage, list[tuple[int, int]]]:
        """Pairs of states of a use by the storage in which it sees the tensor."""
        codes = self._codes[name]
        storages: dict[_Storage, list[tuple[int, int]]] = {}
        for made in dict.fromkeys(self._made[name][1]):
            for wanted in dict.fromkeys(self._read[name][use][1]):
                storage = self._own(name, made)
                if self._group.ranks > 1 and not _shares(made, wanted):
                    tensor = self._block.tensor(name)
                    storage = (name, str(wanted), local_bytes(tensor, wanted, self._group.ranks))
                storages.setdefault(storage, []).append((codes[made], codes[wanted]))
        return storages

    def _own(self, name: str, placement: Placement) -> _Storage:
        """Storage a tensor was made in: that of the tensor it views."""
        tensor = self._block.tensor(name)
        base = self._block.tensor(tensor.base)
        size = 0 if base.kind in _HELD_ELSEWHERE else base.size
        if not isinstance(placement, Shard):
            return base.name, "", size
        if placement.pad:
            whole = tensor.shape[placement.dim]
            return base.name, "padded", size * -(-whole // self._group.ranks) // whole
        return base.name, "sharded", size // self._group.ranks


_Storage = tuple[str, str, int]
"""Tensor, state and bytes."""

_HELD_ELSEWHERE = (
    TensorKind.PARAMETER,
    TensorKind.BUFFER,
    TensorKind.SHARED,
    TensorKind.INPUT,
)

_K = TypeVar("_K", bound=Hashable)


def _grouped(keys: Iterable[_K]) -> list[tuple[_K, frozenset[int]]]:
    """Positions of each distinct key."""
    groups: dict[_K, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return [(key, frozenset(indices)) for key, indices in groups.items()]


def _shares(made: Placement, wanted: Placement) -> bool:
    """Whether a required state lives in the storage it is made from: equal, or a plain slice."""
    if made == wanted:
        return True
    copied = isinstance(wanted, Shard) and (wanted.blocks > 1 or wanted.pad)
    return isinstance(made, Replicate) and not copied


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
        hint="leave --tp to the planner",
    )
