"""Each way a plan can be unsound is found, and a sound one passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from autoplan.ir.plan import Plan
from autoplan.plan_checks import check_plan

Data = dict[str, Any]


def test_sound_plan_passes(plan: Plan) -> None:
    assert check_plan(plan) == []


def _set(*path: str | int, value: object) -> Callable[[Data], None]:
    def change(data: Data) -> None:
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_set("mesh", "dp_shard", value=2), "multiply to 8 ranks, the cluster has 4"),
        (_set("pipeline", "microbatches", value=5), "the global batch is 16"),
        (_set("pipeline", "micro_batch_size", value=2), "captured at 4"),
        (_set("pipeline", "schedule", value="none"), "schedule none with pp 2"),
        (_set("pipeline", "stages", 1, "first", value=0), "expected from 1"),
        (_set("pipeline", "stages", 1, "last", value=3), "end at block 3 of 2"),
        (_set("prediction", "time", "bubble", value=0.7), "the parts sum to 3.7 s"),
        (_set("prediction", "stages", 0, "optimizer", value=0), "memory parts sum to"),
        (_set("prediction", "peak_memory", value=1), "the fullest rank needs"),
        (_set("prediction", "memory_limit", value=2**30), "the limit is 1073741824 B"),
        (_set("prediction", "memory_limit", value=2**40), "over the device's"),
        (_set("prediction", "lower_bound", value=4.0), "above the step time"),
        (_set("graph", "parameters", 1, "placement", value="S(2)"), "mlp.up.weight: S(2)"),
        (_set("graph", "parameters", 1, "placement", value="S(0,3)"), "mlp.up.weight: S(0,3)"),
        (_set("graph", "parameters", 1, "placement", value="S(0,pad)"), "mlp.up.weight: S(0,pad)"),
        (_set("graph", "parameters", 1, "fqn", value="other"), "unknown parameter"),
        (_set("graph", "classes", 1, "ops", 1, "strategy", value=None), "mlp.act: no strategy"),
        (
            _set("graph", "classes", 1, "ops", 1, "strategy", "inputs", value=[]),
            "mlp.act: strategy",
        ),
    ],
)
def test_unsound_plan_is_found(
    plan_data: Data, change: Callable[[Data], None], expected: str
) -> None:
    changed = copy.deepcopy(plan_data)
    change(changed)
    findings = check_plan(Plan.model_validate(changed))
    assert any(expected in finding for finding in findings), findings


def test_a_sharded_value_cannot_become_partial(plan_data: Data) -> None:
    plan_data["graph"]["classes"][1]["ops"][1]["strategy"] = {"inputs": ["P"], "outputs": ["P"]}
    findings = check_plan(Plan.model_validate(plan_data))
    assert any("mlp.act: up can't go from S(1) to P" in finding for finding in findings), findings
