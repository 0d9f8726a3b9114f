"""Seconds to place one GPT-2 and one Llama block: forming the program, handing it over, HiGHS.

Run: ``python benchmarks/intra.py [repeats]``. HiGHS alone is the least that any hand-over can
take, so all/HiGHS is what modelling costs, through PuLP's objects and as arrays.
"""

from __future__ import annotations

import itertools
import sys
import time
from statistics import median

from autoplan.capture import capture, load_model
from autoplan.ir.graph import BlockClass
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Replicate, Shard
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.solver.intra import BlockSolution, solve_block
from autoplan.solver.lp import Handover

MODELS = (("gpt2", 1024), ("llama3-8b", 4096))
RANKS = (2, 4, 8)
WEIGHTS = (0.0, 1e-12)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cluster = load_cluster("8xh100")
    print(
        f"{'block':<20}{'through':<9}{'ops':>5}{'vars':>7}{'cold':>9}{'build':>9}{'HiGHS':>9}",
        end="",
    )
    print(f"{'all':>9}{'all/HiGHS':>11}{'LP integral':>13}")
    for model, seq_len in MODELS:
        graph = capture(load_model(model), seq_len=seq_len, dtype="bfloat16").at(1)
        block = max(graph.classes, key=lambda block: len(block.ops))
        start = time.perf_counter()
        _solve(block, cluster, RANKS[0], sequence=False, weight=0.0)
        cold = time.perf_counter() - start
        for handover in Handover:
            found = [
                _solve(block, cluster, ranks, sequence=sequence, weight=weight, handover=handover)
                for _ in range(repeats)
                for ranks, sequence, weight in itertools.product(RANKS, (False, True), WEIGHTS)
            ]
            _print_row(block, handover, cold, found)


def _solve(
    block: BlockClass,
    cluster: Cluster,
    ranks: int,
    *,
    sequence: bool,
    weight: float,
    handover: Handover = Handover.ARRAYS,
) -> BlockSolution:
    boundary = Shard(1) if sequence else Replicate()
    return solve_block(
        block,
        Group(ranks, ranks),
        cluster,
        boundary_in=(boundary,) * len(block.inputs),
        boundary_out=(boundary,) * len(block.outputs),
        fixed={},
        recompute=Recompute.NONE,
        parameter_cost=1e-13,
        partial_grad_cost=1e-12,
        memory_limit=None,
        memory_weight=weight,
        deadline=time.monotonic() + 60,
        handover=handover,
    )


def _print_row(
    block: BlockClass, handover: Handover, cold: float, found: list[BlockSolution]
) -> None:
    build = median(solution.build_time for solution in found)
    solve = median(solution.solve_time for solution in found)
    integral = sum(solution.relaxation_integral for solution in found) / len(found)
    variables = max(solution.variables for solution in found)
    print(
        f"{block.name:<20}{handover:<9}{len(block.ops):>5}{variables:>7}{cold:>8.3f}s{build:>8.3f}s",
        end="",
    )
    print(f"{solve:>8.3f}s{build + solve:>8.3f}s{(build + solve) / solve:>11.1f}{integral:>13.0%}")


if __name__ == "__main__":
    main()
