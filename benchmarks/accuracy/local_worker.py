"""Rank of a measured program: seconds of its steps, or bytes of its tensors.

``local_worker.py PROGRAM OUTPUT WHAT STEPS``: WHAT is ``time`` or ``memory``. Only torch and the
program's own ``runtime`` are imported beside the meter: what runs is what the folder holds.
``AUTOPLAN_METER`` names the meter's library.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

__all__: list[str] = []

WARM_UP = 2
RATE = 1e-4
MAX_NORM = 1.0


def _load(name: str, path: Path, search: Path | None = None) -> ModuleType:
    locations = None if search is None else [str(search)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Run:
    """The training loop of a program, one step at a time, with random batches."""

    def __init__(self, folder: Path) -> None:
        _load("runtime", folder / "runtime" / "__init__.py", folder / "runtime")
        module = _load("program_model", folder / "model.py")
        self._data: Any = importlib.import_module("runtime.data")
        self.plan: Any = importlib.import_module("runtime.planfile").read_plan(folder / "plan.json")
        environment = importlib.import_module("runtime.environment").check_environment(self.plan)
        share_cores: Any = importlib.import_module("runtime.cores").share_cores
        share_cores(environment.local_rank, environment.ranks)
        dist.init_process_group(environment.backend)
        self._axes: Any = importlib.import_module("runtime.mesh").build_mesh(
            self.plan, environment.device
        )
        trainer = importlib.import_module("runtime.step").Trainer
        self._trainer: Any = trainer(
            module, self.plan, self._axes, environment.device, compiled=self.plan.compile
        )
        self._inputs = self._data.batch_inputs(self.plan)
        self._done = 0
        self._batch: Any = None

    def prepare(self) -> None:
        """Make the batch of the next step, in the place of the last."""
        self._batch = None
        self._batch = self._data.batch(
            self._inputs, self.plan, step=self._done, dp_rank=self._axes.dp.rank, seed=0
        )
        self._done += 1

    def step(self) -> None:
        """One optimizer step."""
        self._trainer.step(self._batch, rate=RATE, max_norm=MAX_NORM)


def _seconds(folder: Path, steps: int) -> dict[str, Any]:
    run = _Run(folder)
    times = []
    for _ in range(WARM_UP + steps):
        run.prepare()
        dist.barrier()
        started = time.perf_counter()
        run.step()
        times.append(time.perf_counter() - started)
    return {"seconds": times[WARM_UP:]}


def _bytes(folder: Path, steps: int) -> dict[str, Any]:
    meter_module: Any = _load("meter", Path(__file__).parent / "meter.py")
    with meter_module.Meter(Path(os.environ["AUTOPLAN_METER"])) as meter:
        run = _Run(folder)
        for _ in range(WARM_UP + steps):
            run.prepare()
            meter.span(run.step)
        return {"peaks": meter.peaks[WARM_UP:], "resting": meter.live()}


def _main(folder: str, output: str, what: str, steps: str) -> None:
    path = Path(output)
    try:
        measure = {"time": _seconds, "memory": _bytes}[what]
        found = measure(Path(folder), int(steps))
    except Exception as error:
        # Whatever the program raises is a finding; the other rank is ended by the launcher.
        found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(found), encoding="utf-8")
    fresh.rename(path)
    if "error" in found:
        os._exit(1)
    dist.destroy_process_group()
    importlib.import_module("runtime.leave").leave(0)


if __name__ == "__main__":
    sys.path.pop(0)  # a module here has the name of one of Python's, which torch.compile imports
    torch.set_num_threads(1)
    _main(*sys.argv[1:])
