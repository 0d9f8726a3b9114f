"""The unsharded model's loss and gradients over one global batch, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from autoplan.capture import ModelSource, disable_dropout
from autoplan.errors import CaptureError
from autoplan.ir.plan import Plan
from autoplan.runtime.parameters import load_buffer
from autoplan.verify.exact import in_float64

__all__ = ["ExactGradient", "exact_gradients", "write_reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactGradient:
    """A gradient in float64: its largest element, and the error of the float32 one.

    Both are absolute.
    """

    size: float
    rounding: float


def write_reference(source: ModelSource, plan: Plan, path: Path, *, seed: int = 0) -> float:
    """Loss of the step; ``path`` gets the state, the batch, the loss and all gradients.

    The global batch is the plan's microbatches on all its data ranks; the loss is their mean.
    Dropout is off. All is in float64 where the plan is.
    """
    module, batch = _built(source, plan, seed)
    loss = _exact_step(module, batch, plan) if _is_exact(plan) else _step(module, batch, plan)
    torch.save(
        {
            "state": {name: p.detach() for name, p in module.named_parameters()},
            "batch": {name: _double(x) for name, x in batch.items()} if _is_exact(plan) else batch,
            "loss": loss,
            "gradients": _gradients(module),
        },
        path,
    )
    return loss


def exact_gradients(source: ModelSource, plan: Plan, *, seed: int = 0) -> dict[str, ExactGradient]:
    """The unsharded model's gradients in float64, and how far its own float32 ones are off.

    Sums that cancel (the bias of attention's keys, the bias before a batch norm) round to more
    than a fixed tolerance in any order of summation; this tells them from wrong gradients.
    """
    module, batch = _built(source, plan, seed)
    _step(module, batch, plan)
    single = _gradients(module)
    module, batch = _built(source, plan, seed)
    _exact_step(module, batch, plan)
    exact = _gradients(module)
    return {
        name: ExactGradient(
            size=float(exact[name].abs().max()),
            rounding=float((gradient - exact[name]).abs().max()),
        )
        for name, gradient in single.items()
    }


def _is_exact(plan: Plan) -> bool:
    return plan.graph.dtype == "float64"


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype == torch.float32 else x


def _exact_step(module: torch.nn.Module, batch: dict[str, torch.Tensor], plan: Plan) -> float:
    module.double()
    with in_float64():
        return _step(module, {name: _double(x) for name, x in batch.items()}, plan)


_NOISE = 0.02


class _NoChance(TorchFunctionMode):
    """Switches off dropout that a model calls as a function, with a probability of its own.

    Uniform draws and those of zeros and ones are as in a program without dropout.
    """

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
        if name in _DRAWS:
            kwargs.pop("generator", None)
            drawn: torch.Tensor = func(*args, **kwargs)  # type: ignore[assignment]
            with torch.no_grad():
                return drawn.fill_(_DRAWS[name])
        return func(*args, **kwargs)


_DRAWS = {"rand": 0.5, "rand_like": 0.5, "bernoulli": 1.0, "bernoulli_": 1.0}
_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"}


def _built(
    source: ModelSource, plan: Plan, seed: int
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    module = disable_dropout(source.build(dtype="float32", device="cpu"), paths=False)
    _set_random_buffers(module, source, plan)
    _vary_constants(module)
    parts = plan.pipeline.microbatches * plan.mesh.dp_replicate * plan.mesh.dp_shard
    samples = plan.pipeline.micro_batch_size * parts
    return module, source.batch(samples, plan.workload.seq_len, seed=seed, device="cpu")


@torch.no_grad()
def _set_random_buffers(module: torch.nn.Module, source: ModelSource, plan: Plan) -> None:
    """Give buffers that are drawn by chance the program's draw; others keep their own value."""
    buffers = dict(module.named_buffers())
    known = {buffer.fqn: buffer for buffer in plan.graph.buffers if buffer.data}
    if not buffers.keys() & known.keys():
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_234_567)
        again = dict(source.build(dtype="float32", device="cpu").named_buffers())
    for fqn in buffers.keys() & known.keys() & again.keys():
        if not torch.equal(buffers[fqn], again[fqn]):
            buffers[fqn].copy_(load_buffer(known[fqn].model_dump()))


@torch.no_grad()
def _vary_constants(module: torch.nn.Module) -> None:
    """Noise on parameters that start as one number.

    Weights that start at zero (of LoRA, of adaptive norms) make the gradients of others zero,
    which would hide that those are wrong.
    """
    for parameter in module.parameters():
        if (
            parameter.is_floating_point()
            and parameter.numel()
            and bool((parameter == parameter.flatten()[:1]).all())
        ):
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)


def _step(module: torch.nn.Module, batch: dict[str, torch.Tensor], plan: Plan) -> float:
    size = plan.pipeline.micro_batch_size
    parts = plan.pipeline.microbatches * plan.mesh.dp_replicate * plan.mesh.dp_shard
    loss = 0.0
    for index in range(parts):
        share = {name: value[index * size : (index + 1) * size] for name, value in batch.items()}
        try:
            with _NoChance():
                part = module(**share) / parts
            part.backward()
        except (IndexError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CaptureError(
                f"{plan.graph.name}: the unsharded model itself fails on {size} sequences of "
                f"{plan.workload.seq_len} tokens: {reason}",
                hint="check --seq-len against the model's own limit (its table of positions), and "
                "writes in place to what its backward needs",
            ) from error
        loss += part.item()
    return loss


def _gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: p.grad.to_dense() if p.grad.is_sparse else p.grad
        for name, p in module.named_parameters()
        if p.grad is not None
    }
