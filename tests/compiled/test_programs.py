"""Programs under torch.compile do what they do without."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.emit import emit_program
from autoplan.ir.mesh import Mesh
from autoplan.ir.placement import Shard
from tests.plans import Setup, make_plan

HERE = Path(__file__).parent
SETUPS = {
    "ddp": ("gpt2", Setup(mesh=Mesh(dp_replicate=2))),
    "zero3": ("llama3-8b", Setup(mesh=Mesh(dp_shard=2), zero=3)),
    "tp": ("llama3-8b", Setup(mesh=Mesh(tp=2), boundary=Shard(1))),
}

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a C++ compiler"
    ),
]


def test_loss_and_gradients_of_a_compiled_program_are_the_eager_ones(tmp_path: Path) -> None:
    folders = []
    for name, (model, setup) in SETUPS.items():
        source = load_model(model).reduced(layers=1, tp=2)
        assert source is not None
        found = capture(source, seq_len=16, dtype="float32")
        plan = make_plan(found.at(2), found.record(), setup, seq_len=16)
        emit_program(plan, tmp_path / name)
        folders.append(tmp_path / name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-addr", "127.0.0.1", "--master-port", str(port),
            str(HERE / "ranks_compiled.py"), *map(str, folders),
        ],
        env=environment | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-6000:]
    assert run.stdout.count(" ok, ") == 2 * len(SETUPS), run.stdout
