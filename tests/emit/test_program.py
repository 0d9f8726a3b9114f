"""The program folder: what its text may import, that it compiles, how it is written."""

import ast
import os
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from autoplan.emit import emit_program, program_files
from autoplan.errors import InputError
from autoplan.ir.plan import Plan

OWN = {
    "plan.json",
    "model.py",
    "train.py",
    "launch.sh",
    "launch.slurm",
    "README.md",
    "runtime/__init__.py",
}
ALLOWED = {"torch", "runtime", "model", "safetensors"}


def imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names


def test_python_files_compile_and_import_only_torch_and_the_library(plan):
    import sys

    for name, text in program_files(plan).items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            strange = imported(text) - ALLOWED - set(sys.stdlib_module_names)
            assert not strange, f"{name} imports {strange}"


def test_lines_fit(plan):
    text = program_files(plan)["model.py"]
    assert max(map(len, text.splitlines())) <= 100


def test_shell_scripts_parse(plan, tmp_path):
    emit_program(plan, tmp_path / "p")
    for name in ("launch.sh", "launch.slurm"):
        subprocess.run(["bash", "-n", tmp_path / "p" / name], check=True)
    assert os.access(tmp_path / "p" / "launch.sh", os.X_OK)


def test_folder_has_all_files_and_nothing_else(plan, tmp_path):
    paths = emit_program(plan, tmp_path / "deep" / "p")
    found = {path for path in (tmp_path / "deep" / "p").rglob("*") if path.is_file()}
    assert found == set(paths)
    names = {path.relative_to(tmp_path / "deep" / "p").as_posix() for path in found}
    assert names >= OWN
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["p"]


def test_plan_in_the_folder_is_the_plan(plan, tmp_path):
    emit_program(plan, tmp_path / "p")
    assert Plan.model_validate_json((tmp_path / "p" / "plan.json").read_text()) == plan


def test_same_plan_same_bytes(plan):
    assert program_files(plan) == program_files(plan)


def test_existing_folder_keeps_other_files(plan, tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "weights.pt").write_text("mine")
    (tmp_path / "p" / "model.py").write_text("old")
    emit_program(plan, tmp_path / "p")
    assert (tmp_path / "p" / "weights.pt").read_text() == "mine"
    assert "class Stage" in (tmp_path / "p" / "model.py").read_text()


def test_a_broken_plan_writes_nothing(plan_data, tmp_path):
    plan_data["graph"]["classes"][1]["ops"][0]["strategy"] = None
    with pytest.raises(InputError, match="no strategy"):
        emit_program(Plan.model_validate(plan_data), tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(plan, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't write"):
        emit_program(plan, Path(tmp_path / "file" / "p"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["parameters"][1].update(placement="R"), "stored as R, used as S"),
        (lambda g: g["classes"][1]["ops"][0]["strategy"].update(call="main"), "not a function"),
        (lambda g: g["classes"][1].update(boundary_out=["S(0)", "R"]), "no placement"),
        (lambda g: g["classes"][1]["ops"][0]["args"].append({"const": ["dtype", "os"]}), "dtype"),
        (lambda g: g["classes"][1]["ops"][0]["args"].append({"code": "os"}), "neither ref"),
        (lambda g: g["instances"].pop(), "do not cut"),
        (
            lambda g: g["classes"][1]["ops"][1]["args"].__setitem__(0, {"ref": "no"}),
            "reads no before",
        ),
    ],
)
def test_plans_that_contradict_themselves_are_rejected(plan_data, change, message):
    change(plan_data["graph"])
    with pytest.raises(InputError, match=message):
        program_files(Plan.model_validate(plan_data))


def test_free_text_of_a_plan_never_reaches_code(plan_data):
    evil = '"""; import os; os.system("true") #'
    plan_data["graph"]["name"] = evil
    plan_data["graph"]["instances"][0]["name"] = evil
    plan_data["graph"]["classes"][1]["ops"][0]["module_path"] = evil
    plan_data["cluster"]["spec"] = evil
    files = program_files(Plan.model_validate(plan_data))
    assert "os" not in imported(files["model.py"]) | imported(files["train.py"])
    calls = [
        node.func.attr
        for node in ast.walk(ast.parse(files["model.py"]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert "system" not in calls
    plan_data["graph"]["name"] = "two\nlines"
    with pytest.raises(ValidationError, match="pattern"):
        Plan.model_validate(plan_data)


def test_partial_products_and_boundaries_are_converted_where_the_plan_says(plan):
    text = program_files(plan)["model.py"]
    forward = text[text.index("class Block1") : text.index("def shared_0")]
    assert "h_Rp = rt.partial_grad(h, self.tp)  # [4, 8] R*" in forward
    assert "up = aten.linear.default(h_Rp, self.w1)  # [4, 8] S(1)" in forward
    assert "down = aten.linear.default(act, self.w2)  # [4, 8] P" in forward
    assert "down_R = rt.all_reduce(down, self.tp)  # [4, 8] R" in forward
    assert "loss = aten.sum.default(down_R)  # [] R" in forward
