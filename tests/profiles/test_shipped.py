"""Profiles that come with the project."""

from pathlib import Path

import pytest

from autoplan.profiles import load_cluster

FOLDER = Path(__file__).resolve().parents[2] / "profiles" / "measured"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_measured_profiles_can_be_used(path):
    cluster = load_cluster("cpu:2", profile=path)
    assert cluster.accelerator.operators is not None
    assert cluster.intra.measured
