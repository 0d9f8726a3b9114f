"""``docs/models.md`` lists every model, and the command that writes it works."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autoplan.capture import list_models

RUN = "run python -m benchmarks.zoo"


def test_page_lists_every_model(root):
    page = root / "docs" / "models.md"
    assert page.is_file(), RUN
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    names = {row.split("|")[1].strip() for row in rows}
    missing = [name for name in list_models() if name not in names]
    files = sorted((root / "examples" / "models").glob("*.py"))
    missing += [file.name for file in files if not any(f"models/{file.name})" in r for r in rows)]
    assert not missing, f"docs/models.md lacks {', '.join(missing)}: {RUN}"


@pytest.mark.slow
def test_command_writes_the_page(root, tmp_path):
    """One model that is verified and one that is refused; a second run repeats neither."""
    page = tmp_path / "models.md"
    command = [
        sys.executable, "-m", "benchmarks.zoo", "--only", "token MLP", "GCN (sparse)",
        "--table-of-only", "--out", str(page), "--cache", str(tmp_path / "results"),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "2 models: 1 captured, 1 solved, 1 verified under tp 2 (1 of them" in text
    assert "1 under pp 2, 1 under both." in text
    assert "GCN (sparse), capture: " in text and "gcn.py:" in text
    again = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert "0 to run" in again.stderr
    assert page.read_text() == text
