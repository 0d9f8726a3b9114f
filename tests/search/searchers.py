"""Searches of a captured model, as `autoplan solve` makes them, with time enough."""

from __future__ import annotations

import time

from autoplan.capture import Captured
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.solver.candidates import GraphFamily, Problem
from autoplan.solver.explore import Searcher


def searcher_of(
    captured: Captured, cluster: Cluster, *, global_batch: int = 8, limit: int | None = None
) -> Searcher:
    return Searcher(
        Problem(
            graphs=GraphFamily(captured.at),
            cluster=cluster,
            global_batch=global_batch,
            update=UPDATE_RULES["adamw"],
            memory_limit=limit or cluster.accelerator.usable_memory,
            deadline=time.monotonic() + 600,
        )
    )
