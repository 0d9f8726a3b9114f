"""The choice problem of a block: operators' strategies, storage and conversions as choices.

Nodes of the problem (see `problem`): each operator chooses a strategy and pays its compute
and inner collectives; each parameter chooses its storage and pays for its bytes; boundary
inputs, and one sink for each boundary output, have a single choice. Most tensors don't depend
on the ends of the block, so their values are shared by all problems of a block and group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.compute import local_bytes
from autoplan.ir.graph import BlockClass
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.choices import BlockChoices, block_choices
from autoplan.solver.problem import Node, Problem, Store
from autoplan.solver.stores import saved_stores, selected_stores
from autoplan.solver.wires import Ends, Wire

__all__ = ["Formulation", "Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a block's program is built for.

    ``fixed`` gives the storage of some parameters (tied or pinned ones), ``barred`` a strategy of
    some operators that isn't to be taken. ``recompute`` says what of the
    forward is paid again and what is kept: with `Recompute.FULL` all of it, and nothing but
    the boundary. ``keeps``: bytes kept from forward to backward are counted, and not more than
    ``memory_limit`` allowed. ``least``: of those bytes only what no strategies keep fewer of, as
    a bound needs them.
    """

    boundary_in: tuple[Placement, ...]
    boundary_out: tuple[Placement, ...]
    fixed: tuple[tuple[str, Placement], ...]
    recompute: Recompute
    keeps: bool
    memory_limit: int | None = None
    least: bool = False
    barred: tuple[tuple[str, OpStrategy], ...] = ()


class Formulation:
    """A block's choice problem in a setting, and what its answers mean."""

    def __init__(self, block: BlockClass, group: Group, cluster: Cluster, setting: Setting) -> None:
        self._wiring = _wiring(block, group, cluster)
        if setting.barred:
            self._wiring = _Wiring(block, self._wiring.choices.without(dict(setting.barred)))
        self._setting = setting
        fixed = dict(setting.fixed)
        self._storages = {
            name: (fixed[name],) if name in fixed else self._wiring.storages(name)
            for name in block.parameters
        }
        self._wires = self._wiring.wires(setting, self._storages)

    def problem(self) -> Problem:
        """The problem."""
        block, ranks, setting = self._wiring.block, self._wiring.choices.ranks, self._setting
        nodes = [
            Node(op.name, costs)
            for op, costs in zip(block.ops, self._wiring.costs(setting.recompute), strict=True)
        ]
        for name, options in self._storages.items():
            sizes = tuple(local_bytes(block.tensor(name), p, ranks) for p in options)
            nodes.append(Node(name, (0.0,) * len(options), sizes))
        nodes += [Node(name, (0.0,)) for name in self._wiring.outside]
        forwards = 2 if setting.recompute is Recompute.FULL else 1
        values = tuple(wire.value(forwards) for wire in self._wires.values())
        return Problem(tuple(nodes), values, self._stores(), setting.memory_limit)

    def strategies(self, choices: Sequence[int]) -> dict[str, OpStrategy]:
        """Strategy of each operator under an assignment."""
        options = zip(self._wiring.block.ops, self._wiring.choices.of, choices, strict=False)
        return {op.name: priced[pick].strategy for op, priced, pick in options}

    def placements(self, choices: Sequence[int]) -> dict[str, tuple[Placement, bool]]:
        """Storage of each parameter, and whether its gradient is partial."""
        placements = {}
        for node, (name, options) in enumerate(self._storages.items(), len(self._wiring.block.ops)):
            readers = self._wiring.readers.get(name, ())
            partial = any(states[choices[reader]] == Replicate(True) for reader, states in readers)
            placements[name] = (options[choices[node]], partial)
        return placements

    def _stores(self) -> tuple[Store, ...]:
        setting, choices = self._setting, self._wiring.choices
        if not setting.keeps or setting.recompute is Recompute.FULL:
            return ()
        block = self._wiring.block
        sent = {
            block.tensor(name).base: placement
            for name, placement in zip(block.outputs, setting.boundary_out, strict=True)
        }
        if setting.recompute is Recompute.NONE:
            return saved_stores(choices, self._wires, sent=sent if setting.least else None)
        given = {
            name: (self._wiring.node(name), (placement,))
            for name, placement in zip(block.inputs, setting.boundary_in, strict=True)
        }
        return selected_stores(choices, self._wires, given, sent, least=setting.least)


class _Wiring:
    """The tensors of a block on a group of ranks, whatever the setting.

    Nodes are the operators, then the parameters, then what stands outside: inputs, sinks of
    outputs, buffers and shared tensors.
    """

    def __init__(self, block: BlockClass, choices: BlockChoices) -> None:
        self.block = block
        self.choices = choices
        sinks = [f"output {index}" for index in range(len(block.outputs))]
        self.outside = (*block.inputs, *sinks, *block.buffers, *block.shared)
        # By tensor: its producer with the placement each choice makes, and its readers.
        self._made: dict[str, Ends] = {}
        self.readers: dict[str, list[Ends]] = {}
        for node, (op, options) in enumerate(zip(block.ops, self.choices.of, strict=True)):
            for index, name in enumerate(op.outputs):
                self._made[name] = node, tuple(c.strategy.outputs[index] for c in options)
            for slot, name in enumerate(op.inputs):
                ends = node, tuple(c.states[slot] for c in options)
                self.readers.setdefault(name, []).append(ends)
        self._nodes = {
            name: node
            for node, name in enumerate((*block.parameters, *self.outside), len(block.ops))
        }
        self._kept: dict[tuple[str, tuple[Placement, ...], tuple[Placement, ...]], Wire] = {}
        self._costs: dict[Recompute, tuple[tuple[float, ...], ...]] = {}

    def node(self, name: str) -> int:
        """Node of a parameter, or of what stands outside."""
        return self._nodes[name]

    def costs(self, recompute: Recompute) -> tuple[tuple[float, ...], ...]:
        """Seconds of each operator's choices."""
        if recompute not in self._costs:
            self._costs[recompute] = tuple(
                tuple(c.forward + c.backward + c.again[recompute] for c in options)
                for options in self.choices.of
            )
        return self._costs[recompute]

    def storages(self, name: str) -> tuple[Placement, ...]:
        """Placements in which a parameter may be stored: those that some reader takes."""
        wanted = [state for _, states in self.readers.get(name, ()) for state in states]
        shards = dict.fromkeys(state for state in wanted if isinstance(state, Shard))
        return (Replicate(), *shards)

    def wires(
        self, setting: Setting, storages: dict[str, tuple[Placement, ...]]
    ) -> dict[str, Wire]:
        """Tensors that someone reads: of operators, parameters, inputs, then the others."""
        block = self.block
        sent: dict[str, list[Ends]] = {}
        for index, (name, placement) in enumerate(
            zip(block.outputs, setting.boundary_out, strict=True)
        ):
            sent.setdefault(name, []).append((self._nodes[f"output {index}"], (placement,)))
        given = dict(zip(block.inputs, setting.boundary_in, strict=True))
        made = dict(self._made)
        for name, options in storages.items():
            made[name] = self._nodes[name], options
        for name, placement in given.items():
            made[name] = self._nodes[name], (placement,)
        for name in (*block.buffers, *block.shared):
            made[name] = self._nodes[name], (Replicate(),)
        return {
            name: self._wire(name, ends, sent.get(name, []))
            for name, ends in made.items()
            if name in self.readers or name in sent
        }

    def _wire(self, name: str, made: Ends, sinks: list[Ends]) -> Wire:
        free = () if name in self._made else made[1]
        key = name, free, tuple(placement for _, (placement,) in sinks)
        if key not in self._kept:
            readers = [*self.readers.get(name, ()), *sinks]
            self._kept[key] = Wire(self.block.tensor(name), self.choices, made, readers)
        return self._kept[key]


@by_identity(2048)
def _wiring(block: BlockClass, group: Group, cluster: Cluster) -> _Wiring:
    return _Wiring(block, block_choices(block, group, cluster))
