"""The unsharded model's loss and gradients over one global batch, in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from autoplan.capture import ModelSource, disable_dropout
from autoplan.errors import CaptureError
from autoplan.ir.plan import Plan

__all__ = ["rounding_errors", "write_reference"]


def write_reference(source: ModelSource, plan: Plan, path: Path, *, seed: int = 0) -> float:
    """Loss of the step; ``path`` gets the state, the batch, the loss and all gradients.

    The global batch is the plan's microbatches on all its data ranks; the loss is their mean.
    Dropout is off.
    """
    module, batch = _built(source, plan, seed)
    loss = _step(module, batch, plan)
    torch.save(
        {
            "state": {name: p.detach() for name, p in module.named_parameters()},
            "batch": batch,
            "loss": loss,
            "gradients": _gradients(module),
        },
        path,
    )
    return loss


def rounding_errors(source: ModelSource, plan: Plan, *, seed: int = 0) -> dict[str, float]:
    """Relative error of each float32 gradient of the unsharded model itself, from float64.

    Sums that cancel (the bias of attention's keys, the bias before a batch norm) round to more
    than a fixed tolerance in any order of summation; this tells them from wrong gradients.
    """
    module, batch = _built(source, plan, seed)
    _step(module, batch, plan)
    single = _gradients(module)
    exact_module, _ = _built(source, plan, seed)
    exact_module.double()
    wide = {k: v.double() if v.dtype == torch.float32 else v for k, v in batch.items()}
    _step(exact_module, wide, plan)
    exact = _gradients(exact_module)
    tiny = torch.finfo(torch.float32).tiny
    return {
        name: float((gradient - exact[name]).abs().max() / max(gradient.abs().max().item(), tiny))
        for name, gradient in single.items()
    }


class _NoDropout(TorchFunctionMode):
    """Switches off dropout that a model calls as a function, with a probability of its own."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            kwargs.pop("dropout_p", None)
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return func(*args, **kwargs)


_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"}


def _built(
    source: ModelSource, plan: Plan, seed: int
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    module = disable_dropout(source.build(dtype="float32", device="cpu"))
    parts = plan.pipeline.microbatches * plan.mesh.dp_replicate * plan.mesh.dp_shard
    samples = plan.pipeline.micro_batch_size * parts
    return module, source.batch(samples, plan.workload.seq_len, seed=seed, device="cpu")


def _step(module: torch.nn.Module, batch: dict[str, torch.Tensor], plan: Plan) -> float:
    size = plan.pipeline.micro_batch_size
    parts = plan.pipeline.microbatches * plan.mesh.dp_replicate * plan.mesh.dp_shard
    loss = 0.0
    for index in range(parts):
        share = {name: value[index * size : (index + 1) * size] for name, value in batch.items()}
        try:
            with _NoDropout():
                part = module(**share) / parts
        except (IndexError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CaptureError(
                f"{plan.graph.name}: the unsharded model itself fails on {size} sequences of "
                f"{plan.workload.seq_len} tokens: {reason}",
                hint="check --seq-len against the model's own limit (its table of positions)",
            ) from error
        part.backward()
        loss += part.item()
    return loss


def _gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
