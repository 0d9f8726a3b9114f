"""Script that torchrun starts on each rank: one step of each program, compared on the spot.

``worker.py JOB``: JOB is a JSON file with ``programs``, a list of [program folder, reference
file], and ``output``, the folder for what each rank found. Only torch and the programs' own
``runtime`` are imported: what is run is what the folder holds. The parameters, the batch and
the expected loss and gradients come from the reference file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

__all__: list[str] = []


def _load(name: str, path: Path, search: Path | None = None) -> ModuleType:
    locations = None if search is None else [str(search)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _load_program(folder: Path, index: int) -> ModuleType:
    """Module ``model`` of a program, with the ``runtime`` of the same program."""
    for name in [n for n in sys.modules if n == "runtime" or n.startswith("runtime.")]:
        del sys.modules[name]
    _load("runtime", folder / "runtime" / "__init__.py", folder / "runtime")
    return _load(f"program_{index}_model", folder / "model.py")


def _runtime(name: str) -> Any:
    """Module of the current program's runtime."""
    return importlib.import_module(f"runtime.{name}")


def _run(folder: Path, reference: Path, index: int) -> dict[str, Any]:
    model = _load_program(folder, index)
    _runtime("random").set_dropout(False)
    plan = _runtime("planfile").read_plan(folder / "plan.json")
    environment = _runtime("environment").check_environment(plan)
    if plan.ranks > 1 and not dist.is_initialized():
        dist.init_process_group(environment.backend)
    expected = torch.load(reference, weights_only=True, mmap=True)
    axes = _runtime("mesh").build_mesh(plan, environment.device)
    # What an operator makes of integers alone has the default dtype.
    exact = torch.float64 == model.DTYPE
    torch.set_default_dtype(torch.float64 if exact else torch.float32)
    trainer = _runtime("step").Trainer(model, plan, axes, environment.device)
    state = expected["state"]
    trainer.load(lambda fqn, spec: state[fqn])
    share = {
        name: value.chunk(plan.dp)[axes.dp.rank].clone()
        for name, value in expected["batch"].items()
    }
    with _runtime("collectives").record_collectives() as issued:
        loss = float(trainer.forward_backward(share))
    gradients = trainer.whole_gradients()
    errors, sizes = {}, {}
    for fqn, gradient in gradients.items():
        # A parameter that the unsharded model does not use has no gradient there.
        want = expected["gradients"].get(fqn, torch.zeros(()))
        if not gradient.numel():
            errors[fqn] = sizes[fqn] = 0.0
            continue
        difference = (gradient.to(want.dtype) - want).abs().max().item()
        # NaN must not pass as small.
        errors[fqn] = difference if math.isfinite(difference) else math.inf
        sizes[fqn] = want.abs().max().item()
    held = sorted(trainer.parameters())
    return {
        "loss": loss,
        "errors": errors,
        "sizes": sizes,
        "held": held,
        "collectives": issued,
    }


def _main(job_file: str) -> None:
    rank = int(os.environ.get("RANK", "0"))
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    output = Path(job["output"])
    failed = False
    for index, (folder, reference) in enumerate(job["programs"]):
        found: dict[str, Any]
        try:
            found = _run(Path(folder), Path(reference), index)
        except Exception as error:
            # Whatever the program raises is the finding; the ranks can't go on together.
            found = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
            failed = True
        path = output / f"{index}.{rank}.json"
        path.with_suffix(".tmp").write_text(json.dumps(found), encoding="utf-8")
        path.with_suffix(".tmp").rename(path)
        if failed:
            print(found["traceback"], file=sys.stderr, flush=True)
            # A peer may wait in a collective: torchrun ends it when this process fails.
            os._exit(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    # As `runtime.leave`, which older programs lack: no tear-down for gloo's threads to fall into.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
