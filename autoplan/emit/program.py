"""The program folder: its files, written so that a reader never sees half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import autoplan
from autoplan.emit.launch import launch_text, readme_text, slurm_text, train_text
from autoplan.emit.module import model_text
from autoplan.errors import InputError
from autoplan.ir.plan import Plan

__all__ = ["emit_program", "program_files"]


def program_files(plan: Plan) -> dict[str, str]:
    """Text of each file of the program, by path in its folder."""
    files = {
        "plan.json": plan.model_dump_json(indent=1) + "\n",
        "model.py": model_text(plan),
        "train.py": train_text(plan),
        "launch.sh": launch_text(plan),
        "launch.slurm": slurm_text(plan),
        "README.md": readme_text(plan),
    }
    # Read by path: importing the runtime would import torch.
    runtime = Path(autoplan.__file__).parent / "runtime"
    for path in sorted(runtime.rglob("*.py")):
        name = path.relative_to(runtime).as_posix()
        files[f"runtime/{name}"] = path.read_text(encoding="utf-8")
    return files


def emit_program(plan: Plan, directory: Path) -> list[Path]:
    """Paths of the program's files, written into ``directory``.

    All of them are written beside it first. A new folder appears by one rename; into one that
    exists each file moves by its own, the plan last, and other files stay.
    """
    files = program_files(plan)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            _write(files, temporary)
            _move(temporary, directory, sorted(files, key=lambda name: name == "plan.json"))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"can't write the program to {directory}: {error.strerror or error}",
            hint="choose another folder with -o",
        ) from error
    return [directory / name for name in files]


def _write(files: dict[str, str], directory: Path) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if name == "launch.sh" else 0o644)
    directory.chmod(0o755)


def _move(temporary: Path, directory: Path, names: list[str]) -> None:
    if not directory.exists():
        temporary.rename(directory)
        return
    for name in names:
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        os.replace(temporary / name, target)
