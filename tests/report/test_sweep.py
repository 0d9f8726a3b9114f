"""The report of a sweep: a row for each point, a curve, no wider than asked, ASCII if needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoplan.ir.plan import Plan
from autoplan.ir.sweep import Objective, PointRecord, SweepRecord
from autoplan.report.curve import Axis, Dot, curve_lines
from autoplan.report.sweep import sweep_lines
from autoplan.solver.objectives import judged, with_plan

GIB = 2**30


def point(nodes: int, batch: int, limit: int, step_time: float | None, plan: Plan) -> PointRecord:
    made = PointRecord(
        cluster=f"{nodes}x4xh100",
        nodes=nodes,
        ranks_per_node=4,
        global_batch=batch,
        memory_limit=limit,
        status="infeasible",
        message="no plan fits",
        needed=limit + 3 * GIB,
        shortfall=3 * GIB,
    )
    if step_time is None:
        return made
    prediction = plan.prediction.model_copy(update={"step_time": step_time})
    workload = plan.workload.model_copy(update={"global_batch": batch})
    made_so = plan.model_copy(update={"prediction": prediction, "workload": workload})
    return with_plan(made, made_so, 2.0)


def sweep_of(points: list[PointRecord], objective: Objective = "step-time") -> SweepRecord:
    return SweepRecord(
        autoplan_version="0.1.0",
        model="toy",
        num_parameters=288,
        accelerator="H100-80GB-SXM",
        seq_len=128,
        dtype="bfloat16",
        optimizer="adamw",
        pins={"tp": "2"},
        objective=objective,
        price_per_hour=2.0,
        termination="interrupted",
        provenance={"measured": 0, "catalogue": 1, "default": 2},
        points=judged(points, objective),
    )


@pytest.fixture
def sizes(plan: Plan) -> SweepRecord:
    """Four cluster sizes, of which the smallest is too small."""
    times = {1: None, 2: 4.0, 4: 2.0, 8: 1.9}
    return sweep_of([point(n, 16, 70 * GIB, t, plan) for n, t in times.items()])


@pytest.fixture
def everything(plan: Plan) -> SweepRecord:
    """Sizes, batches and limits at once."""
    return sweep_of(
        [
            point(n, batch, limit * GIB, 8.0 / n * batch / 16 * 40 / limit, plan)
            for n in (1, 2)
            for batch in (16, 32)
            for limit in (30, 40)
        ]
    )


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unicode", [False, True])
def test_no_line_is_wider_than_asked(
    sizes: SweepRecord, everything: SweepRecord, width: int, unicode: bool
) -> None:
    for sweep in (sizes, everything):
        lines = sweep_lines(sweep, width=width, unicode=unicode, where="plans")
        assert max(map(len, lines)) <= width
        if not unicode:
            assert all(line.isascii() for line in lines)


def test_a_row_for_each_point_and_the_answer_first(sizes: SweepRecord) -> None:
    lines = sweep_lines(sizes, unicode=False, where="plans", took=[("solve", 2.0)])
    text = "\n".join(lines)
    answer = "\n".join(lines[: lines.index("", 2)])
    assert "3 of 4 have a plan   stopped by an interrupt" in answer
    assert "8x4xh100   (objective: step-time)" in answer
    assert re.search(r"knee +4x4xh100 +beyond it", answer)
    assert "solve 2.00 s" in answer
    # 32 ranks for 1.9 s: 60.8 device-seconds for 16 x 128 tokens, at 2 an hour.
    assert re.search(r"\* ?o? +32 +1.90 s +8.25 +16.5 +56.0 GiB", text)
    assert re.search(r"! +4 +does not fit: 3.00 GiB short", text)
    assert "2 a device-hour, as given" in text
    assert "1 catalogue, 2 default" in text
    assert "tp 2 (by the user)" in text


def test_curve_has_each_point_once(sizes: SweepRecord) -> None:
    lines = sweep_lines(sizes, unicode=False)
    start = next(i for i, line in enumerate(lines) if line.startswith("step time over ranks"))
    drawn = [line.partition("|")[2] for line in lines[start + 1 : start + 10]]
    assert sum(line.count("o") for line in drawn) == 3
    assert drawn[0].index("o") < drawn[-1].index("o")  # the slowest is left, the fastest right
    assert lines[start + 10].count("!") == 1  # what does not fit is on the axis


def test_each_other_thing_that_varies_has_a_letter(everything: SweepRecord) -> None:
    lines = sweep_lines(everything)
    for letter in "abcd":
        assert any(line.startswith(f"  {letter}  limit") for line in lines)
    assert any("tune the learning rate" in line for line in lines)


def test_a_sweep_without_any_plan_is_shown(plan: Plan) -> None:
    lines = sweep_lines(sweep_of([point(n, 16, 70 * GIB, None, plan) for n in (1, 2)]))
    assert any("0 of 2 have a plan" in line for line in lines)
    assert not any("best" in line and "objective" in line for line in lines)


def test_a_drawing_by_hand() -> None:
    dots = [Dot(1, 8.0, "a"), Dot(2, 4.0, "b"), Dot(4, 0.0, "c"), Dot(3, None, "!")]
    lines = curve_lines(
        dots, Axis(1, 5), Axis(0, 8), width=20, x_ends=("1", "5"), y_ends=("0 s", "8 s")
    )
    assert lines == [
        "         8 s |a",
        "             |",
        "             |",
        "             |",
        "             | b",
        "             |",
        "             |",
        "             |",
        "         0 s |   c",
        "             +--!--",
        "              1   5",
    ]


def test_documented_keys_are_those_of_the_document(root: Path) -> None:
    text = (root / "docs" / "sweep.md").read_text(encoding="utf-8")
    tables = text.partition("## Files and JSON")[2]
    documented = set(re.findall(r"^\| `(\w+)`", tables, re.MULTILINE))
    own = {"capture_time", "solve_time", "output"}
    assert documented == {*SweepRecord.model_fields, *PointRecord.model_fields, *own}
