"""The unsharded model's loss and gradients over one global batch, in float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from autoplan.capture import ModelSource, disable_dropout
from autoplan.ir.plan import Plan

__all__ = ["write_reference"]


def write_reference(source: ModelSource, plan: Plan, path: Path, *, seed: int = 0) -> float:
    """Loss of the step; ``path`` gets the state, the batch, the loss and all gradients.

    The global batch is the plan's microbatches on all its data ranks; the loss is their mean.
    Dropout is off.
    """
    torch.manual_seed(seed)
    module = disable_dropout(source.build(dtype="float32", device="cpu"))
    size = plan.pipeline.micro_batch_size
    parts = plan.pipeline.microbatches * plan.mesh.dp_replicate * plan.mesh.dp_shard
    batch = source.batch(size * parts, plan.workload.seq_len, seed=seed, device="cpu")
    loss = 0.0
    for index in range(parts):
        share = {name: value[index * size : (index + 1) * size] for name, value in batch.items()}
        part = module(**share) / parts
        part.backward()
        loss += part.item()
    parameters = dict(module.named_parameters())
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    torch.save(
        {
            "state": {name: p.detach() for name, p in parameters.items()},
            "batch": batch,
            "loss": loss,
            "gradients": gradients,
        },
        path,
    )
    return loss
