"""Plan files of an earlier schema, and recompute levels by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autoplan.errors import InputError
from autoplan.ir.identity import plan_digest
from autoplan.ir.plan import Plan
from autoplan.plan_file import read_plan
from autoplan.runtime import planfile

Data = dict[str, Any]


def _mixed(data: Data) -> Data:
    data["recompute"] = "mixed"
    data["graph"]["classes"][1]["recompute"] = "full"
    return data


@pytest.mark.parametrize("level", ["none", "selective", "full"])
def test_version_1_has_its_level_in_every_block(
    plan_data: Data, tmp_path: Path, level: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_data | {"schema_version": 1, "recompute": level}))
    plan = read_plan(path)
    assert plan.schema_version == 2
    assert plan.graph.levels == (level, level)
    path.write_text(plan.model_dump_json())
    assert read_plan(path) == plan


@pytest.mark.parametrize("version", [0, 3, "1", True, None])
def test_other_versions_are_refused(plan_data: Data, tmp_path: Path, version: object) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_data | {"schema_version": version}))
    with pytest.raises(InputError, match="this autoplan reads 2, and 1"):
        read_plan(path)


def test_a_version_1_without_a_graph_is_refused(plan_data: Data, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_data | {"schema_version": 1, "graph": [3]}))
    with pytest.raises(InputError, match="graph"):
        read_plan(path)


def test_a_mixed_plan_survives_its_file(plan_data: Data, tmp_path: Path) -> None:
    plan = Plan.model_validate(_mixed(plan_data))
    assert plan.graph.levels == ("none", "full")
    path = tmp_path / "plan.json"
    path.write_text(plan.model_dump_json())
    assert read_plan(path) == plan


@pytest.mark.parametrize("summary", ["none", "full", "selective"])
def test_the_summary_is_that_of_the_blocks(plan_data: Data, summary: str) -> None:
    data = _mixed(plan_data) | {"recompute": summary}
    with pytest.raises(ValidationError, match="that of the blocks is mixed"):
        Plan.model_validate(data)


def test_plans_of_other_mixtures_are_other_plans(plan_data: Data, tmp_path: Path) -> None:
    digests = set()
    for levels in (("none", "none"), ("none", "full"), ("full", "none"), ("full", "full")):
        data = json.loads(json.dumps(plan_data))
        for block, level in zip(data["graph"]["classes"], levels, strict=True):
            block["recompute"] = level
        data["recompute"] = levels[0] if levels[0] == levels[1] else "mixed"
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(data))
        digest = plan_digest(Plan.model_validate(data))
        assert planfile.read_plan(path).digest == digest
        digests.add(digest)
    assert len(digests) == 4
