"""Run as two ranks: one step of each program given, eager and under torch.compile, compared.

``ranks_compiled.py FOLDER...``. Dropout is off, since compiled kernels draw other masks. That
blocks were compiled is read from torch's own count of graphs.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

FOLDERS = [Path(name) for name in sys.argv[1:]]
sys.path.insert(0, str(FOLDERS[0]))  # every program has the same runtime

from runtime.data import batch, batch_inputs  # noqa: E402
from runtime.leave import leave  # noqa: E402
from runtime.mesh import build_mesh  # noqa: E402
from runtime.planfile import read_plan  # noqa: E402
from runtime.random import set_dropout  # noqa: E402
from runtime.step import Trainer  # noqa: E402

TOLERANCE = 1e-5  # of the largest element: float32 sums in another order


def program(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"model_{folder.name}", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_step(folder: Path, *, compiled: bool) -> tuple[float, dict[str, torch.Tensor], int]:
    """Loss, whole gradients, and how many graphs torch compiled."""
    device, plan = torch.device("cpu"), read_plan(folder / "plan.json")
    axes = build_mesh(plan, device)
    counters.clear()
    trainer = Trainer(program(folder), plan, axes, device, compiled=compiled)
    share = batch(batch_inputs(plan), plan, step=0, dp_rank=axes.dp.rank, seed=0, tokens=None)
    loss = float(trainer.forward_backward(share))
    gradients = {name: value.clone() for name, value in trainer.whole_gradients().items()}
    return loss, gradients, counters["stats"]["unique_graphs"]


def main() -> None:
    dist.init_process_group("gloo")
    set_dropout(False)
    for folder in FOLDERS:
        loss, gradients, graphs = one_step(folder, compiled=False)
        assert graphs == 0
        found, others, graphs = one_step(folder, compiled=True)
        assert graphs > 0, f"{folder.name}: nothing was compiled"
        assert abs(found - loss) < TOLERANCE * abs(loss), f"{folder.name}: loss {found}, {loss}"
        assert set(others) == set(gradients)
        for name, gradient in gradients.items():
            if not gradient.numel():
                continue
            error = float((others[name] - gradient).abs().max() / gradient.abs().max())
            assert error < TOLERANCE, f"{folder.name}: gradient of {name} differs by {error:.3g}"
        print(f"{folder.name} ok, {graphs} graphs", flush=True)
    dist.destroy_process_group()
    leave(0)


main()
