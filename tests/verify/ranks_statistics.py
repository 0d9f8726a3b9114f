"""Run by each rank: one step of programs, then their running statistics against the whole's.

Arguments: pairs of a program's folder and a file of its reference, in which ``buffers`` are
those of the unsharded model after the step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from autoplan.runtime.leave import leave
from autoplan.verify import worker


def errors(folder: Path, reference: Path, index: int) -> dict[str, float]:
    """Largest difference of each running statistic from that of the unsharded model."""
    model = worker._load_program(folder, index)
    plan = worker._runtime("planfile").read_plan(folder / "plan.json")
    environment = worker._runtime("environment").check_environment(plan)
    if not dist.is_initialized():
        dist.init_process_group(environment.backend)
    expected = torch.load(reference, weights_only=True)
    axes = worker._runtime("mesh").build_mesh(plan, environment.device)
    trainer = worker._runtime("step").Trainer(model, plan, axes, environment.device)
    trainer.load(lambda fqn, spec: expected["state"][fqn])
    trainer.forward_backward(expected["batch"])
    found = {}
    for block, (_, _, names) in zip(trainer.stages[0].blocks, model.STAGES[0], strict=True):
        for name, value in zip(names, block._buffers.values(), strict=True):
            if "running" in name:
                found[name] = (value - expected["buffers"][name]).abs().max().item()
    return found


if __name__ == "__main__":
    for index, (folder, reference) in enumerate(zip(sys.argv[1::2], sys.argv[2::2], strict=True)):
        found = errors(Path(folder), Path(reference), index)
        assert found and max(found.values()) < 1e-5, found
        print(f"{len(found)} statistics, worst {max(found.values()):.1e} ok", flush=True)
    dist.destroy_process_group()
    leave(0)
