"""Run by each rank: the toy under each kind of parallelism against one process."""

from __future__ import annotations

import functools
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.runtime.leave import leave
from autoplan.runtime.mesh import build_mesh
from autoplan.runtime.step import Trainer
from tests.runtime.toy import BATCH, FROZEN, PARAMETERS, WIDTH, Program, make_plan, reference

TWO = {
    "ddp": {"dp_shard": 2},
    "zero1": {"dp_shard": 2, "zero": 1},
    "zero2": {"dp_shard": 2, "zero": 2},
    "zero3": {"dp_shard": 2, "zero": 3},
    "replicas": {"dp_replicate": 2, "zero": 3},
    "gpipe": {"pp": 2, "schedule": "gpipe", "microbatches": 4},
    "1f1b": {"pp": 2, "microbatches": 4},
    "fp32 zero3": {"dp_shard": 2, "dtype": "float32", "zero": 3},
    "tp": {"tp": 2},
    "bf16 zero0": {"dp_shard": 2, "dtype": "bfloat16"},
    "bf16 zero1": {"dp_shard": 2, "dtype": "bfloat16", "zero": 1},
    "bf16 zero3": {"dp_shard": 2, "dtype": "bfloat16", "zero": 3},
}
FOUR = {
    "hsdp": {"dp_replicate": 2, "dp_shard": 2, "zero": 3},
    "replicated zero1": {"dp_replicate": 2, "dp_shard": 2, "zero": 1},
    "tp x ddp": {"tp": 2, "dp_shard": 2},
    "tp x zero3": {"tp": 2, "dp_shard": 2, "zero": 3},
    "tp x zero1": {"tp": 2, "dp_shard": 2, "zero": 1},
    "tp x pp": {"tp": 2, "pp": 2, "microbatches": 4},
    "pp x ddp": {"pp": 2, "dp_shard": 2, "microbatches": 4},
    "pp x zero2": {"pp": 2, "dp_shard": 2, "microbatches": 4, "zero": 2, "schedule": "gpipe"},
    "pp x zero3": {"pp": 2, "dp_shard": 2, "microbatches": 4, "zero": 3},
}
# Adam divides by small numbers: rounding grows from step to step.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1}
STEPS, RATE, MAX_NORM = 3, 1e-2, 0.5


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    return [{name: draw(BATCH, WIDTH) for name in ("x", "target")} for _ in range(STEPS)]


def single(start: dict[str, Tensor], dtype: torch.dtype) -> list[tuple[float, float, dict]]:
    """Loss, norm and gradients of each step, and the last values, in plain torch."""
    wide = torch.promote_types(dtype, torch.float32)
    values = {f: v.to(wide, copy=True).requires_grad_(f != FROZEN) for f, v in start.items()}
    groups = [
        {"params": [v for f, v in values.items() if f != FROZEN and v.dim() >= 2]},
        {"params": [v for f, v in values.items() if f != FROZEN and v.dim() < 2]},
    ]
    groups[0]["weight_decay"], groups[1]["weight_decay"] = 0.1, 0.0  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    history = []
    for batch in batches():
        optimizer.zero_grad()
        cast = {f: v.to(dtype) for f, v in values.items()}
        loss = reference(cast, **{k: v.to(dtype) for k, v in batch.items()})
        loss.backward()
        grads = {f: v.grad.clone() for f, v in values.items() if v.grad is not None}
        norm = torch.nn.utils.clip_grad_norm_([*values.values()], MAX_NORM)
        optimizer.step()
        history.append((float(loss.detach()), float(norm), grads))
    return [*history, (0.0, 0.0, {f: v.detach() for f, v in values.items()})]


def compare(name: str, settings: dict) -> None:
    plan = make_plan(**({"dtype": "float64"} | settings))
    dtype = getattr(torch, plan.dtype)
    generator = torch.Generator().manual_seed(1)
    start = {
        f: 0.7 * torch.randn(s.shape, generator=generator, dtype=torch.float64)
        for f, s in PARAMETERS.items()
    }
    expected = single(start, dtype)
    axes = build_mesh(plan, torch.device("cpu"))
    trainer = Trainer(Program(plan.pp, dtype), plan, axes, torch.device("cpu"), weight_decay=0.1)
    trainer.load(lambda fqn, spec: start[fqn])

    def close(what: str, got: Tensor | float, want: Tensor | float) -> None:
        got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
        error = float((got - want).detach().abs().max() / want.detach().abs().max())
        assert error < TOLERANCE[plan.dtype], f"{name}, {what}: relative error {error:.3g}"

    for number, batch in enumerate(batches()):
        loss, norm, grads = expected[number]
        share = {k: v.chunk(plan.dp)[axes.dp.rank].to(dtype) for k, v in batch.items()}
        close("loss alone", trainer.forward_backward(share).item(), loss)
        found = trainer.whole_gradients()
        assert set(found) == set(trainer.parameters()) - {FROZEN}, name
        for fqn, grad in found.items():
            close(f"gradient of {fqn} at step {number}", grad, grads[fqn])
        result = trainer.step(share, rate=RATE, max_norm=MAX_NORM)
        close("loss", result.loss, loss)
        close("norm", result.grad_norm, norm)
        assert norm > MAX_NORM, "nothing is clipped"
    for fqn, value in trainer.whole_parameters().items():
        close(f"value of {fqn}", value, expected[-1][2][fqn])
    print(f"{name} ok", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    configurations = TWO if dist.get_world_size() == 2 else FOUR
    chosen = sys.argv[1:] or list(configurations)
    for name in chosen:
        compare(name, configurations[name])
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
