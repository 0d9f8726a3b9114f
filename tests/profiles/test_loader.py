"""Loaders: measuring one, and reading what was measured or stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoplan.cli.input_rate import loader_rate, with_input
from autoplan.errors import InputError, UsageError
from autoplan.ir.plan import Plan
from autoplan.profiles.measure.loader import measure_loader
from autoplan.report.summary import plan_summary
from autoplan.report.terminal import report_lines

LOADER = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.005)
        return {"name": "x", "image": torch.zeros(3)}

def make(num_workers=0):
    return DataLoader(Slow(), batch_size=4, num_workers=num_workers)

def fixed():
    return make()

def number():
    return 3

def broken(num_workers=0):
    raise OSError("no such share")

def textual():
    return DataLoader(["a", "b"], batch_size=2)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_loader.py"
    path.write_text(LOADER)
    return path


def test_a_loader_that_sleeps_gives_what_sleep_allows(file: Path) -> None:
    measured = measure_loader(f"{file}:make", duration=0.5)
    assert 100 < measured.rate <= 200  # 5 ms a sample, and what Python adds
    assert (measured.workers, measured.samples % 4) == (0, 0)


def test_workers_multiply_the_rate(file: Path) -> None:
    measured = measure_loader(f"{file}:make", workers=2, duration=1.0)
    assert measured.workers == 2
    assert 150 < measured.rate <= 410


@pytest.mark.parametrize(
    ("factory", "workers", "error", "message"),
    [
        ("absent", None, UsageError, "has no function absent"),
        ("fixed", 2, UsageError, "no parameter num_workers"),
        ("number", None, InputError, "returns int"),
        ("broken", None, InputError, "fails with OSError: no such share"),
        ("textual", None, InputError, "no tensor whose first dim"),
    ],
)
def test_what_is_no_loader_is_refused(
    factory: str, workers: int | None, error: type[Exception], message: str, file: Path
) -> None:
    with pytest.raises(error, match=message):
        measure_loader(f"{file}:{factory}", workers=workers, duration=0.1)


def stages(**changes: object) -> dict[str, object]:
    return {
        "schema_version": 1,
        "kind": "input",
        "cores": 8,
        "stages": [
            {"name": name, "rate": f"{rate} samples/s"}
            for name, rate in (("decode", 2), ("augment", 4), ("batch", 50))
        ],
        "sample_size": "15 MB",
        "disk_bandwidth": "100 MB/s",
    } | changes


def test_stages_in_a_file_give_their_optimum(tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text(json.dumps(stages()))
    rate, source = loader_rate(path)
    assert round(rate, 3) == 6.667
    assert "3 stages on 8 cores" in source


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (stages(kind="x"), "kind is 'x'"),
        (stages(cores=0), "cores"),
        (stages(stages=[]), "stages"),
        (stages(sample_size=None), "of use together"),
        (stages(stages=[{"name": "a", "rate": "2 batches/s"}]), "samples/s"),
        ({"kind": "loader", "rate": 5}, "loader file"),
        ([], "kind is None"),
    ],
)
def test_damaged_files_are_refused(data: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        loader_rate(path)


def test_a_plan_is_input_bound_iff_its_input_takes_longer(plan: Plan) -> None:
    seconds = plan.prediction.step_time
    mesh = plan.mesh
    share = plan.workload.global_batch / (mesh.dp_replicate * mesh.dp_shard)
    needed = plan.cluster.ranks_per_node * share / seconds
    for rate, bound in ((0.5 * needed, True), (0.999 * needed, True), (1.001 * needed, False)):
        given = with_input(plan, rate, "stated")
        text = "\n".join(report_lines(given))
        document = plan_summary(given)["input"]
        assert isinstance(document, dict)
        assert document["bound"] is bound is given.is_input_bound
        assert ("input-bound: the loader gives" in text) is bound
        assert ("input-bound" in document["message"]) is bound
        rate_of_job = document["samples_per_second"], document["plan_samples_per_second"]
        assert plan.workload.global_batch / document["effective_step_time"] == pytest.approx(
            min(rate_of_job)
        )
    assert plan_summary(plan)["input"] is None
