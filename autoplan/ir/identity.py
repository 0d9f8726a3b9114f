"""What makes a plan the same plan: a digest that a run's log carries."""

from __future__ import annotations

import hashlib
import json

from autoplan.ir.plan import Plan

__all__ = ["plan_digest"]


def plan_digest(plan: Plan) -> str:
    """Digest of model, workload, cluster and settings; a program's log names its plan by it.

    `runtime.planfile` computes the same from plan.json, without the schema.
    """
    mesh, pipeline, workload = plan.mesh, plan.pipeline, plan.workload
    values = [
        plan.model.digest,
        plan.cluster.digest,
        [mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.tp],
        [pipeline.schedule, pipeline.microbatches, pipeline.micro_batch_size],
        [[stage.first, stage.last] for stage in pipeline.stages],
        [workload.global_batch, workload.seq_len, workload.dtype, workload.optimizer],
        workload.master_weights,
        [plan.zero, plan.recompute],
        *(["compile"] if workload.compile else []),
        *(list(plan.graph.levels) if plan.recompute == "mixed" else []),
    ]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
