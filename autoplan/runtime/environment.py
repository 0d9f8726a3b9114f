"""Whether the ranks that were launched are those of the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .failure import EnvironmentMismatch
from .planfile import ProgramPlan

__all__ = ["Environment", "check_environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a process is among the launched ones, and the device it computes on."""

    rank: int
    local_rank: int
    ranks: int
    device: torch.device
    backend: str


def check_environment(plan: ProgramPlan, env: Mapping[str, str] = os.environ) -> Environment:
    """Environment of this process; raises `EnvironmentMismatch` when it is not the plan's.

    Only variables and the local devices are read, so every rank refuses by itself, before
    any process group exists. ``AUTOPLAN_DEVICE=cpu`` runs an accelerator's plan on the CPU.
    """
    rank = int(env.get("RANK", "0"))
    local_rank = int(env.get("LOCAL_RANK", "0"))
    ranks = int(env.get("WORLD_SIZE", "1"))
    if ranks != plan.ranks:
        per_node = min(plan.ranks, plan.ranks_per_node)
        nodes = f"--nnodes {plan.ranks // per_node} " if plan.ranks > per_node else ""
        raise EnvironmentMismatch(
            f"the plan is for {plan.ranks} ranks ({plan.cluster}), {ranks} were launched",
            hint=f"torchrun {nodes}--nproc-per-node {per_node} train.py",
        )
    choice = env.get("AUTOPLAN_DEVICE", "")
    if choice not in ("", "cpu"):
        raise EnvironmentMismatch(
            f"AUTOPLAN_DEVICE is {choice!r}; only 'cpu' can be chosen",
            hint="unset AUTOPLAN_DEVICE to run on the plan's accelerator",
        )
    if choice == "cpu" or plan.accelerator.startswith("cpu"):
        if not choice:
            _check_memory(plan, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return Environment(
            rank=rank,
            local_rank=local_rank,
            ranks=ranks,
            device=torch.device("cpu"),
            backend="gloo",
        )
    if not torch.cuda.is_available():
        raise EnvironmentMismatch(
            f"the plan is for {plan.accelerator}, this machine has no accelerator torch can use",
            hint="AUTOPLAN_DEVICE=cpu runs the same program on the CPU, slowly",
        )
    if local_rank >= torch.cuda.device_count():
        raise EnvironmentMismatch(
            f"local rank {local_rank} has no device: this machine has {torch.cuda.device_count()}",
            hint=f"the plan has {plan.ranks_per_node} ranks a node",
        )
    device = torch.device("cuda", local_rank)
    _check_memory(plan, torch.cuda.get_device_properties(device).total_memory)
    return Environment(rank=rank, local_rank=local_rank, ranks=ranks, device=device, backend="nccl")


def _check_memory(plan: ProgramPlan, memory: int) -> None:
    if memory < plan.peak_memory:
        raise EnvironmentMismatch(
            f"a rank needs {plan.peak_memory / 2**30:.1f} GiB, this device has "
            f"{memory / 2**30:.1f} GiB",
            hint="solve again for this cluster",
        )
