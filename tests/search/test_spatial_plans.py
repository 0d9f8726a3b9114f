"""The planner shards rows where that pays: one large volume on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.ir.placement import Shard, parse_placement
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.solver.search import solve

MODELS = Path(__file__).parent.parent / "verify" / "spatial_models.py"


@pytest.fixture(scope="module")
def volume() -> Captured:
    """A 3-D U-Net at 128 x 128 x 128 voxels, one sample a step."""
    overrides = {"size": 128, "width": 32, "dims": 3, "dense": True}
    source = load_model(f"{MODELS}:unet3d", overrides=overrides)
    return capture(source, seq_len=1, dtype="bfloat16")


def plan_for(volume: Captured, cluster: str) -> Plan:
    workload = WorkloadRecord(global_batch=1, seq_len=1, dtype="bfloat16", optimizer="adamw")
    return solve(volume, workload, load_cluster(cluster), pins={})


def test_one_large_volume_is_cut_into_slabs(volume: Captured) -> None:
    plan = plan_for(volume, "8xh100")
    assert plan.mesh.tp == 8
    for block in plan.graph.classes:
        for op in block.ops:
            if op.target.startswith(("aten.conv", "aten.group_norm", "aten.max_pool")):
                placement = parse_placement(op.strategy.outputs[0])
                assert isinstance(placement, Shard) and placement.dim >= 2, op.name
    # Replicated, each rank does what one rank alone does.
    whole = plan_for(volume, "1xh100")
    assert plan.prediction.step_time < 0.4 * whole.prediction.step_time
    assert plan.prediction.peak_memory < 0.3 * whole.prediction.peak_memory
