"""Bytes on the ranks of a configuration with given strategies and stages."""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.costs.memory import BlockMemory, StageMemory, StagePass, stage_memory, stage_pass
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.optimizer import UpdateRule
from autoplan.schedules import order
from autoplan.solver.between import local_counts
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.inter import StageCut
from autoplan.solver.pieces import Pieces
from autoplan.solver.rank_memory import rank_memory
from autoplan.solver.shared import shared_costs
from autoplan.solver.space import Configuration

__all__ = ["rank_memories", "resident_bytes"]


def rank_memories(
    graph: Graph,
    configuration: Configuration,
    point: ModelPoint,
    blocks: Pieces,
    cut: StageCut,
    cluster: Cluster,
    update: UpdateRule,
) -> tuple[StageMemory, ...]:
    """Memory of each pipeline rank of a cut."""
    settings = configuration.memory_settings(
        dtype_size(graph.dtype), update=update, host=cluster.accelerator.synchronous
    )
    _, shared = shared_costs(graph, cluster)
    resident = resident_bytes(graph, configuration)
    if not configuration.looped:
        parts = (_stage_blocks(graph, point, blocks, span) for span in cut.ranges)
        return tuple(
            stage_memory(
                own, settings, in_flight=flight, shared=shared, resident=resident, tied=tied
            )
            for (own, tied), flight in zip(parts, configuration.flights(), strict=True)
        )
    found = []
    for rank in range(configuration.mesh.pp):
        passes: dict[int, StagePass] = {}
        held: set[str] = set()
        for stage, (span, on) in enumerate(
            zip(cut.ranges, configuration.ranks_of_stages, strict=True)
        ):
            if on == rank:
                own, _ = _stage_blocks(graph, point, blocks, span, held)
                passes[stage] = stage_pass(own, settings)
        steps = order(
            configuration.schedule,
            rank,
            configuration.mesh.pp,
            configuration.microbatches,
            configuration.virtual_stages,
        )
        found.append(rank_memory(passes, steps, settings, shared=shared, resident=resident))
    return tuple(found)


def resident_bytes(graph: Graph, configuration: Configuration) -> int:
    """Bytes of the model's buffers and of the batch, which every stage is handed whole."""
    buffers = sum(math.prod(b.shape) * dtype_size(b.dtype) for b in graph.buffers)
    return buffers + configuration.microbatches * sum(tensor.size for tensor in graph.inputs)


@by_identity(64)
def _shares_parameters(graph: Graph) -> bool:
    """Whether some parameter is of several blocks."""
    used = [fqn for instance in graph.instances for fqn in instance.parameters]
    return len(set(used)) < len(used)


def _stage_blocks(
    graph: Graph,
    point: ModelPoint,
    blocks: Pieces,
    span: tuple[int, int],
    held: set[str] | None = None,
) -> tuple[list[BlockMemory], int]:
    """Memory of each block of a stage, and elements of parameters that several of them use.

    Those count with the first block. ``held`` has the parameters that the rank holds for other
    stages already, and gets this one's.
    """
    first, last = span
    chosen = graph.instances[first:last]
    parts = [blocks.memories[instance.block_class] for instance in chosen]
    tied: dict[str, int] = {}
    if _shares_parameters(graph):
        held = set() if held is None else held
        for index, instance in enumerate(chosen):
            counts = local_counts(point, instance)
            again = {fqn: count for fqn, count in counts.items() if fqn in held}
            held.update(counts)
            if again:
                tied.update(again)
                memory, repeated = parts[index], sum(again.values())
                parts[index] = replace(
                    memory,
                    numel=memory.numel - repeated,
                    trainable=max(0, memory.trainable - repeated),
                )
    if first == 0:
        parts[0] = replace(parts[0], boundary_in=0)
    if last == len(graph.instances):
        parts[-1] = replace(parts[-1], boundary_out=0)
    return parts, sum(tied.values())
