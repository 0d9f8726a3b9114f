"""Rows of the report about each stage's ranks."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autoplan.ir.plan import Plan
from autoplan.plan_checks import check_plan
from autoplan.report.summary import plan_summary
from autoplan.report.terminal import report_lines
from autoplan.report.timeline import stage_waits


def test_stage_waits_of_a_step_computed_by_hand(plan_data: dict[str, Any]) -> None:
    # 1F1B of 4 microbatches on 2 stages, forward 0.25 s and backward 0.375 s: each stage waits
    # for one of both. The last does so for its first input, and for the first stage's end.
    first, last = stage_waits(Plan.model_validate(plan_data))
    for waits in (first, last):
        assert waits.busy == 4 * 0.625 + 0.25 + 0.125
        assert (waits.gathers, waits.reductions) == (0, 0)
    assert (first.messages, first.other_ranks) == (0.625, 0.0)
    assert (last.messages, last.other_ranks) == (0.25, 0.375)


def test_stage_that_is_done_waits_for_the_others(plan_data: dict[str, Any]) -> None:
    plan_data["step"]["stages"][0]["optimizer"] = 0.0
    first, last = stage_waits(Plan.model_validate(plan_data))
    assert (first.other_ranks, last.other_ranks) == (0.125, 0.375)


def test_report_has_a_row_for_each_stage(plan_data: dict[str, Any]) -> None:
    lines = report_lines(Plan.model_validate(plan_data), unicode=False)
    start = next(i for i, line in enumerate(lines) if line.startswith("a rank's step"))
    rows = [" ".join(line.split()) for line in lines[start + 2 : start + 4]]
    assert rows == [
        "0 2.88 s 82% 625 ms 18% - - -",
        "1 2.88 s 82% 250 ms 7% - - 375 ms 11%",
    ]


def test_summary_has_seconds_by_stage(plan_data: dict[str, Any]) -> None:
    timeline = plan_summary(Plan.model_validate(plan_data))["timeline"]
    assert isinstance(timeline, list)
    assert timeline[0] == {
        "busy": 2.875,
        "messages": 0.625,
        "gathers": 0.0,
        "reductions": 0.0,
        "other_ranks": 0.0,
    }


def test_older_plan_has_no_rows(plan_data: dict[str, Any]) -> None:
    del plan_data["step"]
    plan = Plan.model_validate(plan_data)
    assert plan_summary(plan)["timeline"] is None
    assert not any("a rank's step" in line for line in report_lines(plan))


def test_check_rebuilds_the_step(plan_data: dict[str, Any]) -> None:
    plan_data["step"]["units"][0]["backward"][0] = 0.5
    findings = check_plan(Plan.model_validate(plan_data))
    assert any(finding.startswith("step: its costs take") for finding in findings)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("units", 0, "gather"), -1.0, "greater than or equal to 0"),
        (("units", 0, "forward"), [1.0], "Field required"),
        (("units", 0, "forward", 0), float("inf"), "finite number"),
        (("stages", 0, "units"), [[7, 1]], "names unit 7 of 2"),
        (("gathering",), "often", "Input should be"),
        (("network_slow_down",), 0.5, "greater than or equal to 1"),
    ],
)
def test_malformed_record_is_refused(
    plan_data: dict[str, Any], place: tuple[str | int, ...], value: object, message: str
) -> None:
    record = plan_data["step"]
    for key in place[:-1]:
        record = record[key]
    record[place[-1]] = value
    with pytest.raises(ValidationError, match=message):
        Plan.model_validate(plan_data)


def test_step_of_other_stages_is_found(plan_data: dict[str, Any]) -> None:
    plan_data["step"]["stages"][0]["units"] = [[0, 3]]
    findings = check_plan(Plan.model_validate(plan_data))
    assert "step: stages of [3, 1] units, those of the pipeline have [1, 1] blocks" in findings


def test_step_too_long_to_simulate_is_refused(plan_data: dict[str, Any]) -> None:
    plan_data["pipeline"]["microbatches"] = 10**9
    with pytest.raises(ValidationError, match="passes of units"):
        Plan.model_validate(plan_data)
