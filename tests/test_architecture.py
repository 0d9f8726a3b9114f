"""What the code may import, how large a module may grow, and other rules of the house."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "autoplan"
LINKED = ("solver", "cli", "profiles")
MAX_LINES = 500

# Part of the package -> parts it may import. Parts are subpackages, or modules at the top.
BASE = {"errors", "units", "_version"}
DATA = BASE | {"ir"}
MAY_IMPORT = {
    "_version": set(),
    "__init__": {"_version", "capture", "rules"},
    "errors": set(),
    "units": set(),
    "ir": {"ir"},
    "rules": DATA | {"rules"},
    "schedules": DATA | {"schedules"},
    "profiles": DATA | {"profiles", "runtime"},
    "costs": DATA | {"costs"},
    "profiler": DATA | {"profiler", "rules", "costs", "profiles", "runtime"},
    "simulate": DATA | {"simulate", "schedules"},
    "solver": DATA | {"solver", "rules", "costs", "schedules", "simulate", "profiles"},
    "capture": DATA | {"capture"},
    "emit": DATA | {"emit", "rules", "schedules"},
    "runtime": set(),
    "report": DATA | {"report", "rules", "schedules", "simulate"},
    "plan_file": DATA,
    "plan_checks": DATA | {"schedules", "simulate"},
    "verify": DATA | {"verify", "capture", "rules", "emit", "runtime", "plan_file"},
    "cli": None,
}
ONLY_IN = {
    "torch": ("capture", "runtime", "verify", "profiles.measure", "profiler"),
    "transformers": ("capture",),
    "pulp": ("solver.lp",),
    "highspy": ("solver.highs",),
    "rich": ("cli", "report.text"),
}


def modules() -> dict[str, Path]:
    """Dotted name within the package -> file; links are followed."""
    found = {}
    for folder in (PACKAGE, *(PACKAGE / name for name in LINKED)):
        for path in sorted(folder.resolve().rglob("*.py")):
            inside = path.relative_to(ROOT)
            parts = inside.with_suffix("").parts
            name = ".".join(parts[1:] if parts[0] == "autoplan" else parts)
            found[name] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute names that a module imports, and the level of relative ones."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield base, node.level
            if base == "autoplan":
                for alias in node.names:
                    yield f"autoplan.{alias.name}", 0


def part_of(name: str) -> str:
    """Top part of a module: ``solver.lp`` -> ``solver``."""
    return name.split(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_imports_respect_the_layers(name: str) -> None:
    part = part_of(name)
    assert part in MAY_IMPORT, f"new part {part!r}: say in MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[part]
    for target, level in imports(MODULES[name]):
        if level:
            assert part == "runtime", f"{name}: relative import"
            continue
        pieces = target.split(".")
        if pieces[0] in LINKED:
            pytest.fail(f"{name} imports {target}: write autoplan.{target}")
        if pieces[0] != "autoplan" or len(pieces) == 1:
            continue
        if allowed is None:
            continue
        assert pieces[1] in allowed or pieces[1] == "__version__", f"{name} imports {target}"


@pytest.mark.parametrize("name", MODULES)
def test_heavy_libraries_stay_in_their_place(name: str) -> None:
    for target, level in imports(MODULES[name]):
        library = target.split(".")[0]
        if level or library not in ONLY_IN:
            continue
        homes = ONLY_IN[library]
        assert any(name == home or name.startswith(home + ".") for home in homes), (
            f"{name} imports {library}, which belongs in {', '.join(homes)}"
        )


def test_nothing_imports_the_command_line() -> None:
    for name, path in MODULES.items():
        if part_of(name) != "cli":
            assert not [t for t, _ in imports(path) if t.startswith("autoplan.cli")], name


@pytest.mark.parametrize("name", MODULES)
def test_module_is_small_and_has_a_table_of_contents(name: str) -> None:
    text = MODULES[name].read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES, f"{name}: over {MAX_LINES} lines, split it"
    assert text.isascii(), f"{name}: ASCII only"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{name}: no docstring"
    last = name.split(".")[-1]
    private = last.startswith("_") and last not in ("__init__", "__main__")
    has_all = any(
        isinstance(target, ast.Name) and target.id == "__all__"
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    defines = any(
        isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ImportFrom) for node in tree.body
    )
    assert has_all or private or not defines, f"{name}: no __all__"


@pytest.mark.parametrize("name", MODULES)
def test_names_follow_the_glossary(name: str) -> None:
    assert name.split(".")[-1] not in {"utils", "util", "helpers", "common", "misc"}, name
    unit = re.compile(r".+_(ms|gb|mib|mb|gib)$", re.IGNORECASE)
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.FunctionDef):
            names = [node.name]
        assert not [n for n in names if unit.match(n)], f"{name}:{node.lineno}: unit in {names}"


@pytest.mark.parametrize("folder", LINKED)
def test_source_folders_are_links_and_guarded(folder: str) -> None:
    link = PACKAGE / folder
    assert link.is_symlink() and str(link.readlink()) == f"../{folder}"
    code = f"import {folder}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "import it by that name" in done.stderr


def test_light_parts_load_without_torch() -> None:
    light = [
        f"autoplan.{name}".removesuffix(".__init__")
        for name in MODULES
        if not any(
            name == home or name.startswith(home + ".")
            for home in (*ONLY_IN["torch"], "cli.__main__", "emit")
        )
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_declared_dependencies_are_the_imported_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=!~\[ ]", item)[0].lower() for item in project["dependencies"]}
    declared |= {
        re.split(r"[<>=!~\[ ]", item)[0].lower() for item in project["optional-dependencies"]["hf"]
    }
    used = {
        target.split(".")[0]
        for path in MODULES.values()
        for target, level in imports(path)
        if not level
    }
    third_party = used - set(sys.stdlib_module_names) - {"autoplan", "runtime"}
    owners = importlib.metadata.packages_distributions()
    needed = {owners.get(name, [name])[0].lower() for name in third_party}
    # PuLP drives HiGHS through highspy, which is therefore needed but imported by PuLP only.
    assert needed | {"highspy"} == declared
