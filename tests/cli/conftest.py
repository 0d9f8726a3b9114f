"""Running the command line as users do: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# A GPT-2 that is captured and solved in seconds.
SMALL = (
    "--set=n_layer=2",
    "--set=n_embd=64",
    "--set=n_head=4",
    "--set=vocab_size=512",
    "--seq-len=32",
)


def run_autoplan(
    *arguments: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **variables}
    return subprocess.run(
        [sys.executable, "-m", "autoplan.cli", *map(str, arguments)],
        cwd=cwd or ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def autoplan(tmp_path: Path) -> Run:
    """Run ``autoplan`` from an empty folder."""

    def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_autoplan(*arguments, cwd=tmp_path, **variables)

    return run


@pytest.fixture
def plan_path(plan_data: dict[str, Any], tmp_path: Path) -> Path:
    """File of a sound plan."""
    path = tmp_path / "made" / "plan.json"
    path.parent.mkdir()
    path.write_text(json.dumps(plan_data), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Program folder of a small GPT-2 on ``cpu:2``, and the document that solve printed."""
    folder = tmp_path_factory.mktemp("solved") / "program"
    done = run_autoplan(
        "solve", "gpt2", *SMALL, "--cluster", "cpu:2", "--global-batch", "4", "-o", folder, "--json"
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)
