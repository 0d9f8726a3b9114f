"""``autoplan sweep`` from end to end on a small model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL, run_autoplan

SWEEP = ("sweep", "gpt2", *SMALL, "--cluster", "cpu:1..2", "--global-batch", "4")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder of plans on one and two ranks within three limits, and the document."""
    folder = tmp_path_factory.mktemp("swept") / "plans"
    done = run_autoplan(
        *SWEEP, "--memory-limit", "2MB,1GB", "--price-per-hour", "1.5", "-o", folder, "--json"
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_points_and_files(swept: tuple[Path, dict[str, Any]]) -> None:
    folder, document = swept
    points = document["points"]
    assert [(p["ranks_per_node"], p["memory_limit"]) for p in points] == [
        (ranks, limit) for ranks in (1, 2) for limit in (2 * 10**6, 10**9)
    ]
    small, large = points[0], points[1]
    assert small["status"] == "infeasible" and small["plan"] == ""
    assert small["shortfall"] == small["needed"] - small["memory_limit"] > 0
    assert large["status"] == "solved" and large["gap"] >= 0
    # One rank, 4 x 32 tokens a step, 1.5 an hour.
    assert large["cost_per_token"] == pytest.approx(1.5 / 3600 * large["step_time"] / 128)
    written = {p["plan"] for p in points if p["plan"]}
    assert {path.name for path in folder.iterdir()} == written | {"sweep.json"}
    saved = json.loads((folder / "sweep.json").read_text())
    assert saved == {key: document[key] for key in saved}
    assert document["output"] == str(folder) and document["termination"] == "complete"


def test_a_plan_of_a_sweep_is_that_of_its_own_solve(
    swept: tuple[Path, dict[str, Any]], solved: tuple[Path, dict[str, Any]]
) -> None:
    """The fixture's solve has no limit that matters."""
    folder, document = swept
    name = document["points"][-1]["plan"]
    swept_plan = json.loads((folder / name).read_text())
    alone = json.loads((solved[0] / "plan.json").read_text())
    assert swept_plan["mesh"] == alone["mesh"]
    assert swept_plan["prediction"]["step_time"] == alone["prediction"]["step_time"]
    assert swept_plan["graph"] == alone["graph"]


@pytest.mark.slow
def test_text_and_exit_codes(tmp_path: Path) -> None:
    done = run_autoplan(*SWEEP, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and max(map(len, done.stdout.splitlines())) <= 80
    assert "2 of 2 have a plan" in done.stdout and "step time over ranks" in done.stdout
    assert run_autoplan(*SWEEP, "--memory-limit", "1MB").returncode == 3
    assert run_autoplan(*SWEEP, "--time-limit", "0.000001").returncode == 4
    refused = run_autoplan(*SWEEP, "--dp-shard", "8")
    assert refused.returncode == 2 and "hint: " in refused.stderr
    (tmp_path / "notes.txt").write_text("mine")
    taken = run_autoplan(*SWEEP, "-o", tmp_path)
    assert taken.returncode == 2 and "other files" in taken.stderr


@pytest.mark.slow
def test_interrupt_keeps_the_points_found(root: Path, tmp_path: Path) -> None:
    words = ["sweep", "gpt2", "--cluster", "1..64x8xh100", "--global-batch", "4096", "--json"]
    folder = tmp_path / "plans"
    process = subprocess.Popen(
        [sys.executable, "-m", "autoplan.cli", *words, "-o", str(folder)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    waited = time.monotonic() + 120
    while not folder.exists() or len(list(folder.iterdir())) < 2:
        assert time.monotonic() < waited and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["termination"] == "interrupted"
    statuses = [point["status"] for point in document["points"]]
    assert statuses[0] == "solved" and statuses[-1] == "not_reached"
