"""The ``--json`` document: documented keys, plain numbers, nothing that varies by run."""

from __future__ import annotations

import json

from autoplan.ir.plan import Plan
from autoplan.report.summary import plan_summary

KEYS = {
    "step_time",
    "lower_bound",
    "gap",
    "peak_memory",
    "memory_limit",
    "mesh",
    "pipeline",
    "zero",
    "recompute",
    "tokens_per_second",
    "mfu",
    "baselines",
    "solve_time",
    "capture_time",
    "provenance",
}


def test_keys_and_units(plan: Plan) -> None:
    document = plan_summary(plan, capture_time=1.5, solve_time=2.5)
    assert document.keys() >= KEYS
    assert document["step_time"] == 3.5
    assert document["peak_memory"] == 56 * 2**30
    assert document["mesh"] == {"pp": 2, "dp_replicate": 1, "dp_shard": 1, "tp": 2}
    assert document["baselines"] == {"DDP": "needs 118 GiB", "FSDP": 4.2}
    assert document["capture_time"] == 1.5 and document["solve_time"] == 2.5
    pipeline = document["pipeline"]
    assert isinstance(pipeline, dict)
    assert pipeline.keys() == {
        "schedule", "virtual_stages", "microbatches", "micro_batch_size", "stages",
    }  # fmt: skip


def test_is_json_without_nan(plan: Plan) -> None:
    text = json.dumps(plan_summary(plan), allow_nan=False)
    assert json.loads(text)["provenance"]["counts"] == {
        "measured": 0,
        "catalogue": 1,
        "default": 1,
    }
