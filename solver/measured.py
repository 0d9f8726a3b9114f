"""How much of a plan's compute time was measured operator by operator."""

from __future__ import annotations

from autoplan.costs.compute import measured_time, op_time
from autoplan.ir.graph import Graph
from autoplan.ir.hardware import Accelerator, Provenance
from autoplan.solver.frames import class_counts
from autoplan.solver.pricing import Priced

__all__ = ["measured_share", "operators_note"]


def measured_share(graph: Graph, best: Priced, accelerator: Accelerator) -> float:
    """Part of the compute time of a microbatch's forward and backward that was measured.

    What curves say about the rest, sums of gradients among it, counts as not measured.
    """
    ranks = best.configuration.mesh.tp
    measured = total = 0.0
    for count, block, solution in zip(
        class_counts(graph), graph.classes, best.point.solutions, strict=True
    ):
        for op in block.ops:
            strategy = solution.strategies[op.name]
            time = op_time(op, block, strategy, ranks, accelerator)
            total += count * (time.forward + time.backward)
            found = measured_time(op, block, strategy, ranks, accelerator)
            if found is not None:
                measured += count * (found.forward + found.backward)
    return measured / total if total else 0.0


def operators_note(graph: Graph, best: Priced, accelerator: Accelerator) -> str:
    """Where the compute time of a plan for a measured machine comes from; else empty."""
    origin = {source.field: source.provenance for source in accelerator.sources}
    if accelerator.operators is None:
        if origin.get("matmul_efficiency") is not Provenance.MEASURED:
            return ""
        return (
            "operators: none measured, compute time is from this machine's curves "
            "(autoplan profile MODEL measures them)"
        )
    # Rounded down: 100% means all.
    percent = int(100 * measured_share(graph, best, accelerator) + 1e-9)
    rest = "" if percent == 100 else ", the rest from its curves"
    return f"operators: {percent}% of compute time measured on this machine{rest}"
