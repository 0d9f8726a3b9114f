"""Commands on a plan file: report, validation, and what a damaged file says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.profiles.test_measured import document as profile_document

Run = Callable[..., "CompletedProcess[str]"]


@pytest.mark.parametrize("as_folder", [False, True])
def test_show_takes_the_file_or_its_folder(autoplan: Run, plan_path: Path, as_folder: bool) -> None:
    done = autoplan("show", plan_path.parent if as_folder else plan_path)
    assert done.returncode == 0
    assert "step time   3.50 s" in done.stdout
    assert done.stderr == ""


def test_show_json_is_one_document(autoplan: Run, plan_path: Path) -> None:
    done = autoplan("show", plan_path, "--json")
    assert json.loads(done.stdout)["step_time"] == 3.5


def test_trace_has_events_that_do_not_overlap(
    autoplan: Run, plan_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    done = autoplan("show", plan_path, "--trace", path)
    assert done.returncode == 0, done.stderr
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(3.5e6)
    streams: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        times = event["ts"], event["ts"] + event["dur"]
        streams.setdefault((event["pid"], event["tid"]), []).append(times)
    assert {rank for rank, _ in streams} == {0, 1}
    for spans in streams.values():
        spans.sort()
        ends = [0.0, *(end for _, end in spans)]
        assert all(start >= end - 1e-3 for (start, _), end in zip(spans, ends, strict=False))
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize("name", ["missing/trace.json", "."])
def test_trace_that_cant_be_written_is_one_line(
    autoplan: Run, plan_path: Path, tmp_path: Path, name: str
) -> None:
    done = autoplan("show", plan_path, "--trace", tmp_path / name)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert "can't be written" in error and hint.startswith("hint: ")
    assert list(tmp_path.rglob("*.tmp")) == []


def test_damaged_step_is_one_line_and_a_hint(
    autoplan: Run, plan_path: Path, plan_data: dict[str, Any]
) -> None:
    plan_data["step"]["units"][0]["forward"] = "soon"
    plan_path.write_text(json.dumps(plan_data))
    done = autoplan("show", plan_path)
    assert done.returncode == 6
    error, hint = done.stderr.splitlines()
    assert "step.units.0.forward" in error and hint.startswith("hint: ")


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "40"}])
def test_report_off_a_terminal_has_no_escapes(
    autoplan: Run, plan_path: Path, variables: dict[str, str]
) -> None:
    done = autoplan("show", plan_path, **variables)
    assert "\x1b" not in done.stdout and "step time" in done.stdout


def test_report_is_ascii_where_the_locale_is(autoplan: Run, plan_path: Path) -> None:
    done = autoplan("show", plan_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii()


def test_check_accepts_a_sound_plan(autoplan: Run, plan_path: Path) -> None:
    done = autoplan("check", plan_path, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True


def test_check_lists_everything_wrong(
    autoplan: Run, plan_path: Path, plan_data: dict[str, Any]
) -> None:
    plan_data["mesh"]["tp"] = 4
    plan_data["prediction"]["step_time"] = 9.0
    plan_path.write_text(json.dumps(plan_data))
    done = autoplan("check", plan_path, "--json")
    assert done.returncode == 6
    findings = json.loads(done.stdout)["error"]["details"]["findings"]
    assert any("the cluster has 4" in finding for finding in findings)
    assert any("the parts sum to 3.5 s" in finding for finding in findings)


@pytest.mark.parametrize("command", [["show"], ["check"], ["emit", "-o", "out"], ["verify"]])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "binary", "list", "old", "field"])
def test_damaged_plan_is_exit_6_with_a_hint(
    autoplan: Run, plan_path: Path, plan_data: dict[str, Any], command: list[str], damage: str
) -> None:
    text = plan_path.read_text()
    expected = ""
    if damage == "missing":
        plan_path.unlink()
        expected = "no such plan"
    elif damage == "empty":
        plan_path.write_text("")
        expected = "not valid JSON"
    elif damage == "cut":
        plan_path.write_text(text[: len(text) // 2])
        expected = "not valid JSON"
    elif damage == "binary":
        plan_path.write_bytes(b"\xff\x00\xfe")
        expected = "can't be read"
    elif damage == "list":
        plan_path.write_text("[1, 2]")
        expected = "no schema_version"
    elif damage == "old":
        plan_path.write_text(json.dumps(plan_data | {"schema_version": 99}))
        expected = "schema version 99"
    elif damage == "field":
        plan_data["mesh"]["tp"] = "many"
        plan_path.write_text(json.dumps(plan_data))
        expected = "mesh.tp"
    done = autoplan(command[0], plan_path, *command[1:], "--json")
    assert done.returncode == 6, done.stderr
    error = json.loads(done.stdout)["error"]
    assert expected in error["message"] and error["hint"]
    assert "Traceback" not in done.stderr


def test_code_in_names_is_refused(
    autoplan: Run, plan_path: Path, plan_data: dict[str, Any]
) -> None:
    plan_data["graph"]["classes"][1]["ops"][0]["target"] = "aten.linear.default); import os; ("
    plan_path.write_text(json.dumps(plan_data))
    assert autoplan("emit", plan_path, "-o", "out").returncode == 6


def test_emit_keeps_off_a_folder_of_the_user(
    autoplan: Run, plan_path: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("mine")
    done = autoplan("emit", plan_path, "-o", mine)
    assert done.returncode == 2
    assert "no plan.json" in done.stderr
    assert (mine / "README.md").read_text() == "mine"


def test_hardware_lists_shows_and_suggests(autoplan: Run) -> None:
    listed = json.loads(autoplan("hardware", "--json").stdout)["accelerators"]
    assert {"h100", "b200"} <= {alias for item in listed for alias in item["aliases"]}
    shown = json.loads(autoplan("hardware", "h100", "--json").stdout)
    assert shown["memory"]["source"]
    done = autoplan("hardware", "h1000")
    assert done.returncode == 2 and "did you mean h100" in done.stderr


def test_hardware_list_and_show_have_every_number(autoplan: Run) -> None:
    assert autoplan("hardware", "list").stdout == autoplan("hardware").stdout
    document = json.loads(autoplan("hardware", "show", "h100", "--json").stdout)
    text = autoplan("hardware", "show", "h100").stdout
    figures = [v for v in document.values() if isinstance(v, dict) and "source" in v]
    figures += document["matmul_peak"].values()
    for link in document["links"].values():
        figures += [value for value in link.values() if isinstance(value, dict)]
    assert len(figures) > 10
    for figure in figures:
        assert f"{figure['provenance']}: {figure['source']}" in text
    points = document["matmul_efficiency"]["points"]
    assert text.count(" TFLOP/s") >= len(points)
    assert f"network {document['intra']}" in text and f"network {document['inter']}" in text
    alone = autoplan("hardware", "show", document["intra"]).stdout
    assert document["links"][document["intra"]]["bandwidth"]["source"] in alone


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show",), 2, "no name given"),
        (("list", "h100"), 2, "autoplan hardware show h100"),
        (("show", "h1000"), 2, "did you mean h100"),
        (("a100", "h100"), 2, "one at a time"),
        (("show", "absent.json"), 6, "absent.json"),
    ],
)
def test_hardware_refuses_with_a_way_out(
    autoplan: Run, words: tuple[str, ...], code: int, message: str
) -> None:
    done = autoplan("hardware", *words)
    assert done.returncode == code
    assert message in done.stderr


def test_hardware_shows_a_measured_profile(autoplan: Run, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(profile_document()))
    text = autoplan("hardware", "show", path).stdout
    assert "Test CPU" in text and "1024 x 1024 x 1024" in text and "residuals" in text
    assert json.loads(autoplan("hardware", "show", path, "--json").stdout)["ranks"] == 2


def test_env_shows_versions_and_no_other_variables(autoplan: Run) -> None:
    done = autoplan("env", "--json", AUTOPLAN_CACHE="/x", SECRET_TOKEN="hush")
    document = json.loads(done.stdout)
    assert document["environment"] == {"AUTOPLAN_CACHE": "/x"}
    assert "hush" not in done.stdout
    assert document["packages"]["torch"]


def test_explain_says_why_and_what_others_cost(
    autoplan: Run, solved: tuple[Path, dict[str, Any]]
) -> None:
    folder, document = solved
    done = autoplan("explain", folder, "*.h.0.mlp.c_fc.weight")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("parameter   transformer.h.0.mlp.c_fc.weight, 64 x 256")
    assert f"on tp {document['mesh']['tp']}" in done.stdout
    found = json.loads(autoplan("explain", folder, "*.h.0.mlp.c_fc.weight", "--json").stdout)
    (explained,) = found["explanations"]
    assert explained["step_time"] == pytest.approx(document["step_time"], rel=1e-9)
    assert explained["peak_memory"] == document["peak_memory"]
    assert found["notes"] == []


@pytest.mark.slow
def test_explain_prices_another_degree(autoplan: Run, solved: tuple[Path, dict[str, Any]]) -> None:
    folder, document = solved
    tp = 2 if document["mesh"]["tp"] == 1 else 1
    found = json.loads(autoplan("explain", folder, f"tp={tp}", "--json").stdout)
    assert (found["name"], found["value"], found["chosen"]) == ("tp", str(tp), False)
    assert found["plan"]["step_time"] == document["step_time"]
    assert found["other"]["step_time"] >= document["step_time"] * (1 - 0.01)
    assert f"tp {tp}" in found["other"]["label"] or tp == 1


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("*.c_fk.weight", "no parameter and no operator", "c_fc"),
        ("tpp=2", "no decision of a plan", "did you mean tp"),
        ("tp=3", "does not divide", "--tp 2"),
    ],
)
def test_explain_of_what_is_not_there_is_exit_2(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], target: str, message: str, hint: str
) -> None:
    done = autoplan("explain", solved[0], target)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and hint in done.stderr


def test_explain_refuses_a_plan_of_other_numbers(
    autoplan: Run, solved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    data = json.loads((solved[0] / "plan.json").read_text())
    data["cluster"]["digest"] = "0" * len(data["cluster"]["digest"])
    (tmp_path / "plan.json").write_text(json.dumps(data))
    done = autoplan("explain", tmp_path, "tp=1")
    assert done.returncode == 6
    assert "have changed since the plan was made" in done.stderr
