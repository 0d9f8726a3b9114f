"""The terminal report: complete, closed sums, no wider than asked, ASCII when it must be."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from autoplan.ir.plan import Plan
from autoplan.report.sharding import block_shardings
from autoplan.report.terminal import print_report, report_lines


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unicode", [False, True])
def test_no_line_is_wider_than_asked(plan: Plan, width: int, unicode: bool) -> None:
    lines = report_lines(plan, width=width, unicode=unicode, where="out/plan")
    assert max(map(len, lines)) <= width
    if not unicode:
        assert all(line.isascii() for line in lines)


def test_answer_comes_first_and_every_part_is_there(plan: Plan) -> None:
    text = "\n".join(report_lines(plan, unicode=False, where="out", solve_time=2.0))
    answer = text.splitlines()[:3]
    assert "toy" in answer[0] and "H100" in answer[0]
    assert "3.50 s   585 tokens/s   MFU 50.0%" in answer[2]
    for expected in (
        "56.0 GiB of 74.0 GiB",
        "within 5.0% of the best plan",
        "bound 3.33 s",
        "pp 2 x tp 2",
        "4 microbatches of 4",
        "schedule 1f1b",
        "ZeRO 0",
        "recompute none",
        "fixed       tp 2 (by the user)",
        "needs 118 GiB",
        "+50.0%",
        "1 catalogue, 1 default",
        "none is measured",
        "aten.foo has no rule",
        "autoplan verify out",
        "solve 2.00 s",
    ):
        assert expected in text


def _seconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"s": 1.0, "ms": 1e-3}[unit]


def test_printed_time_and_memory_parts_sum_to_their_wholes(plan: Plan) -> None:
    lines = report_lines(plan, unicode=False)
    start = next(i for i, line in enumerate(lines) if line.startswith("where the time goes"))
    parts = []
    for line in lines[start + 1 :]:
        match = re.search(r"^  \S.*?\s(\d[\d.]* m?s)\s+[\d.]+%", line)
        if match is None:
            break
        parts.append(_seconds(match[1]))
    assert sum(parts) == pytest.approx(3.5, rel=0.01)
    start = next(i for i, line in enumerate(lines) if line.startswith("memory per rank"))
    sizes = [float(m[1]) for line in lines[start + 1 :] if (m := re.search(r"([\d.]+) GiB", line))]
    shown = sizes[: sizes.index(2.0) + 1]
    assert sum(shown) == pytest.approx(56.0)


def test_tightest_stage_is_the_one_shown(plan_data: dict[str, Any]) -> None:
    plan_data["prediction"]["stages"].reverse()
    lines = report_lines(Plan.model_validate(plan_data), unicode=False)
    assert any(
        line.startswith("memory per rank (stage 1)") and "56.0 GiB" in line for line in lines
    )


def test_collectives_of_a_column_then_row_split_pair(plan: Plan) -> None:
    """Megatron's pair: one all_reduce forward (P -> R), one backward (R -> R*)."""
    (sharding,) = block_shardings(plan)
    assert sharding.name == "mlp"
    assert dict(sharding.sharded) == {"up.weight": "S(0)", "down.weight": "S(1)"}
    assert sharding.forward == {"all_reduce": 1}
    assert sharding.backward == {"all_reduce": 1}


def test_sequence_parallel_boundary_is_gather_and_scatter(plan_data: dict[str, Any]) -> None:
    """With S(0) at both ends: all_gather/reduce_scatter forward and the reverse backward."""
    block = plan_data["graph"]["classes"][1]
    block["boundary_in"], block["boundary_out"] = ["S(0)"], ["S(0)"]
    block["ops"] = block["ops"][:3]
    block["outputs"] = ["down"]
    (sharding,) = block_shardings(Plan.model_validate(plan_data))
    assert sharding.forward == {"all_gather": 1, "reduce_scatter": 1}
    assert sharding.backward == {"all_gather": 1, "reduce_scatter": 1}


def test_no_tensor_parallelism_no_section(plan_data: dict[str, Any]) -> None:
    plan_data["mesh"]["tp"] = 1
    lines = report_lines(Plan.model_validate(plan_data))
    assert not any(line.startswith("tensor parallel") for line in lines)


def test_stream_without_unicode_gets_ascii_and_no_colour(plan: Plan) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_report(plan, stream)
    stream.flush()
    assert b"\x1b" not in raw.getvalue()
    assert b"step time" in raw.getvalue()
