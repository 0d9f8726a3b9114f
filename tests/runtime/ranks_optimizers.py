"""Run by each rank: every update rule under every ZeRO level, its training and its bytes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autoplan.costs.memory import MemorySettings, state_bytes
from autoplan.ir.optimizer import UPDATE_RULES, update_rule
from autoplan.runtime.mesh import build_mesh
from autoplan.runtime.step import Trainer
from tests.runtime.ranks_training import batches
from tests.runtime.toy import FROZEN, PARAMETERS, Program, make_plan

STEPS = 60
ADAM = ("adamw", "adamw-bf16", "adamw-8bit")
RATES = {"sgd": 0.02, "sgd-momentum": 0.002}


def train(
    name: str, zero: int, dtype: str, *, master: bool
) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Losses, whole final parameters, bytes of the optimizer's state."""
    plan = make_plan(
        dp_shard=2,
        zero=zero,
        dtype=dtype,
        optimizer=name,
        master_weights="float32" if master else "none",
    )
    axes = build_mesh(plan, torch.device("cpu"))
    compute = getattr(torch, dtype)
    trainer = Trainer(Program(1, compute), plan, axes, torch.device("cpu"), weight_decay=0.0)
    generator = torch.Generator().manual_seed(1)
    start = {f: 0.7 * torch.randn(s.shape, generator=generator) for f, s in PARAMETERS.items()}
    trainer.load(lambda fqn, spec: start[fqn])
    share = {k: v.chunk(2)[axes.dp.rank].to(compute) for k, v in batches()[0].items()}
    rate = RATES.get(name, 1e-2)
    losses = [trainer.step(share, rate=rate, max_norm=1.0).loss for _ in range(STEPS)]
    size = sum(t.numel() * t.element_size() for t in trainer.optimizer.state_tensors())
    return losses, trainer.whole_parameters(), size


def check(name: str, zero: int, dtype: str, *, master: bool, reference: list[float]) -> None:
    losses, values, size = train(name, zero, dtype, master=master)
    label = f"{name} zero {zero} {dtype} master {master}"
    trainable = sum(torch.Size(s.shape).numel() for f, s in PARAMETERS.items() if f != FROZEN)
    settings = MemorySettings(
        zero=zero,
        dp_shard=2,
        itemsize=2 if dtype == "bfloat16" else 4,
        update=update_rule(name, master=master),
        pipelined=False,
        microbatches=1,
        replicated=True,
    )
    predicted = state_bytes(trainable, trainable, settings)[2]
    assert size == predicted, f"{label}: {size} bytes of state, {predicted} predicted"
    assert losses[-1] < 0.9 * losses[0], f"{label}: loss {losses[0]} to {losses[-1]}"
    if name in ADAM:
        error = abs(losses[-1] / reference[-1] - 1)
        limit = 0.05 if dtype == "float32" else 0.15
        assert error < limit, f"{label}: {losses[-1]}, float32 AdamW reaches {reference[-1]}"
    for fqn, value in values.items():
        copies = [torch.empty_like(value) for _ in range(2)]
        dist.all_gather(copies, value.contiguous())
        assert torch.equal(*copies), f"{label}: {fqn} differs between ranks"
    if dist.get_rank() == 0:
        print(f"{label}: {losses[0]:.4f} to {losses[-1]:.4f}, {size} bytes ok", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    reference = train("adamw", 0, "float32", master=True)[0]
    for name in UPDATE_RULES:
        for zero in range(4):
            check(name, zero, "float32", master=True, reference=reference)
    for name in ADAM:
        for zero in range(4):
            check(name, zero, "bfloat16", master=True, reference=reference)
        for zero in range(2):
            check(name, zero, "bfloat16", master=False, reference=reference)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
