"""What the classes of a model must agree on: block boundaries and tied parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.ir.graph import BlockClass, Graph, Tensor
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.solver.offers import offers

__all__ = [
    "Frame",
    "block_ends",
    "boundary_placements",
    "class_counts",
    "fixed_parameters",
    "placed_parameters",
    "shared_parameters",
    "storage_options",
]


@dataclass(frozen=True, slots=True)
class Frame:
    """Placement of tensors between blocks, and storage of tied parameters by FQN."""

    boundary: Placement
    tied: tuple[tuple[str, Placement], ...] = ()


def boundary_placements(graph: Graph, ranks: int) -> tuple[Placement, ...]:
    """Placements considered for the tensors between blocks: whole, or sharded on one dim.

    Dim 0 is the microbatch; sharding it on tp is data parallelism under another name, so it is
    left to the data axes. The last dim is what norms reduce over, so no norm could run on it.
    """
    if ranks == 1:
        return (Replicate(),)
    dims = {
        dim
        for block in graph.classes
        for name in block.outputs
        for dim in range(1, max(2, len(block.tensor(name).shape) - 1))
        if len(block.tensor(name).shape) > 1 and block.tensor(name).shape[dim] % ranks == 0
    }
    return (Replicate(), *(Shard(dim) for dim in sorted(dims)))


def _at_boundary(tensor: Tensor, placement: Placement, ranks: int) -> Placement:
    if isinstance(placement, Shard) and (
        placement.dim >= len(tensor.shape) or tensor.shape[placement.dim] % ranks
    ):
        return Replicate()
    return placement


def block_ends(
    block: BlockClass, boundary: Placement, tp: int
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """Placements of the tensors that enter a block, and of those that leave it."""
    ins = tuple(_at_boundary(block.tensor(name), boundary, tp) for name in block.inputs)
    outs = tuple(_at_boundary(block.tensor(name), boundary, tp) for name in block.outputs)
    return ins, outs


@by_identity(64)
def class_counts(graph: Graph) -> list[int]:
    """Instances of each class."""
    counts = [0] * len(graph.classes)
    for instance in graph.instances:
        counts[instance.block_class] += 1
    return counts


@by_identity(64)
def shared_parameters(graph: Graph) -> dict[str, list[tuple[int, str]]]:
    """FQN to (class, local name) of its uses, for parameters that more than one class uses."""
    times = Counter(fqn for instance in graph.instances for fqn in instance.parameters)
    several = {fqn for fqn, count in times.items() if count > 1}
    uses: dict[str, list[tuple[int, str]]] = {}
    for instance in graph.instances if several else ():
        block = graph.block_class(instance)
        for local, fqn in zip(block.parameters, instance.parameters, strict=True):
            if fqn not in several:
                continue
            entry = (instance.block_class, local)
            if entry not in uses.setdefault(fqn, []):
                uses[fqn].append(entry)
    return {fqn: found for fqn, found in uses.items() if len(found) > 1}


def fixed_parameters(
    graph: Graph, index: int, tied: Mapping[str, Placement]
) -> dict[str, Placement]:
    """Storage of tied parameters by the local names of one class."""
    fixed: dict[str, Placement] = {}
    for fqn, uses in shared_parameters(graph).items():
        for used_in, local in uses:
            if used_in == index and fqn in tied:
                fixed[local] = tied[fqn]
    return fixed


def placed_parameters(
    graph: Graph, index: int, stored: Mapping[str, Placement]
) -> dict[str, Placement]:
    """Those of the placements by FQN that are of a class, by its local names.

    All copies of the class have the same.
    """
    if not stored:
        return {}
    instance = next(i for i in graph.instances if i.block_class == index)
    local = zip(graph.classes[index].parameters, instance.parameters, strict=True)
    return {name: stored[fqn] for name, fqn in local if fqn in stored}


def storage_options(block: BlockClass, name: str, tp: int, cluster: Cluster) -> list[Placement]:
    """Storages of a parameter that all its uses in a block take."""
    options: list[Placement] | None = None
    for op, priced in zip(block.ops, offers(block, tp, cluster.accelerator), strict=True):
        for slot, used in enumerate(op.inputs):
            if used != name:
                continue
            offered: list[Placement] = []
            for strategy, _ in priced:
                placement = _storage(strategy, slot)
                if placement not in offered:
                    offered.append(placement)
            options = offered if options is None else [p for p in options if p in offered]
    return options or [Replicate()]


def _storage(strategy: OpStrategy, slot: int) -> Placement:
    placement = strategy.inputs[slot]
    return placement if isinstance(placement, Shard) else Replicate()
