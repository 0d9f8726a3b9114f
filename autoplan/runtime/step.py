"""One optimizer step of a program: microbatches, gradient sums, clipping, update.

Order: the microbatches by schedule, with the mean over data ranks; the sum over tp of
gradients that are partial there; the sum over stages of tied parameters; clipping by the
norm of the whole model; the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .axis import SINGLE, Axis
from .clip import clip_gradients, gradient_norm, local_gradient
from .data_parallel import (
    accumulate,
    materialise,
    shard_stage,
    share_parameters,
    uses_fsdp,
    wrap_ddp,
)
from .failure import InvalidFile
from .host_memory import keep_freed_memory
from .mesh import MeshAxes
from .optimizer import FlatOptimizer, Optimizer, ShardedOptimizer
from .parameters import ParameterSpec, deferred_parameters, initial_value
from .pipeline import SPLIT, Pipeline
from .planfile import ProgramPlan
from .state import fill_parameters, whole_gradients, whole_parameters

__all__ = ["Program", "StepResult", "Trainer"]


class Program(Protocol):
    """What a generated ``model.py`` provides.

    A stage is a module with ``blocks`` (a ModuleList: the units of FSDP2) and ``fqns()``, the
    parameters it holds now by name. Its forward takes the boundary tensors by position and
    the batch by keyword.
    """

    @property
    def PARAMETERS(self) -> Mapping[str, ParameterSpec]:
        """All parameters of the model."""
        ...

    @property
    def build_stage(self) -> Callable[[int, Axis, torch.device], nn.Module]:
        """Function to the stage of an index as the tp rank holds it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Mean loss over the global batch, and the gradients' 2-norm before clipping."""

    loss: float
    grad_norm: float


class Trainer:
    """The stages of a program that this rank trains: one, unless the schedule loops.

    Parameters start at ``values`` (whole values by name) or, without, at the plan's initial
    values, drawn from ``seed``. ``compiled``: each block's forward runs under torch.compile.
    """

    def __init__(
        self,
        program: Program,
        plan: ProgramPlan,
        axes: MeshAxes,
        device: torch.device,
        *,
        seed: int = 0,
        rate: float = 3e-4,
        weight_decay: float = 0.1,
        values: Callable[[str, ParameterSpec], Tensor] | None = None,
        compiled: bool = False,
    ) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        self.plan, self.axes, self.device = plan, axes, device
        self.specs = program.PARAMETERS
        fsdp = uses_fsdp(plan.zero, axes)
        with deferred_parameters() if fsdp else nullcontext():
            self.stages = [
                program.build_stage(index, axes.tp, device)
                for index in plan.stages_on(axes.pp.rank)
            ]
        if fsdp and len(self.stages) > 1:
            raise InvalidFile(f"ZeRO {plan.zero} with {len(self.stages)} stages on a rank")
        if fsdp and plan.master_weights != "float32":
            raise InvalidFile(f"ZeRO {plan.zero} shards are float32, the plan has no such masters")
        if fsdp:
            (stage,) = self.stages
            shard_stage(stage, axes, zero=plan.zero)
            materialise(stage, device)
            modules = [stage]
            self.optimizer: Optimizer = ShardedOptimizer(
                self.parameters(), name=plan.optimizer, rate=rate, weight_decay=weight_decay
            )
        else:
            apart = share_parameters(self.stages)
            self.optimizer = FlatOptimizer(
                self.parameters(),
                axes.dp_shard if plan.zero == 1 else SINGLE,
                name=plan.optimizer,
                rate=rate,
                weight_decay=weight_decay,
                master=plan.master_weights == "float32",
            )
            modules = [
                stage if plan.schedule in SPLIT or both else wrap_ddp(stage, axes)
                for stage, both in zip(self.stages, apart, strict=True)
            ]
        self.module = modules[0]
        self._unreduced = _unreduced(modules, sharded=fsdp)
        if compiled:
            for block in (b for stage in self.stages for b in stage.blocks.children()):  # type: ignore[union-attr]
                # Not the block itself: the hooks of FSDP2 stay outside.
                block.forward = torch.compile(block.forward, dynamic=False)
        if values is None:
            self.load(lambda fqn, spec: initial_value(spec, name=fqn, seed=seed, device=device))
        else:
            self.load(values)
        self._pipeline = (
            Pipeline(self.stages, modules, plan=plan, axes=axes, device=device)
            if plan.pp > 1
            else None
        )
        # Dropout draws from this generator: equal on tp ranks, different on all others.
        torch.manual_seed(seed * 1_000_003 + axes.pp.rank * axes.dp.size + axes.dp.rank)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of this rank's stages by name, as the rank holds them."""
        found: dict[str, nn.Parameter] = {}
        for stage in self.stages:
            found |= stage.fqns()  # type: ignore[operator]
        return found

    def load(self, value: Callable[[str, ParameterSpec], Tensor]) -> None:
        """Set all parameters from their whole values; ``value`` gives one by name."""
        fill_parameters(self.parameters(), self.specs, self.axes, value)
        self.optimizer.refresh()

    def whole_parameters(self) -> dict[str, Tensor]:
        """Whole parameters of the stage on the CPU; all ranks of the stage must call it."""
        return whole_parameters(self.parameters(), self.specs, self.axes)

    def whole_gradients(self) -> dict[str, Tensor]:
        """Whole gradients of the stage on the CPU; all ranks of the stage must call it."""
        return whole_gradients(self.parameters(), self.specs, self.axes)

    def zero_gradients(self) -> None:
        """Drop the gradients of the last step."""
        for parameter in self.parameters().values():
            parameter.grad = None

    def forward_backward(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean loss over the global batch; leaves its whole gradient in the parameters.

        ``batch`` is this data rank's share of the global batch, on the device.
        """
        self.zero_gradients()
        if self._pipeline is None:
            loss: Tensor | None = accumulate(self.module, self._split(batch))
        else:
            loss = self._pipeline.step(batch)
        self._average_unreduced()
        self._sum_partial_gradients()
        self._sum_tied_gradients()
        return self._share_loss(loss)

    def step(self, batch: dict[str, Tensor], *, rate: float, max_norm: float = 0.0) -> StepResult:
        """One optimizer step at a learning rate; ``max_norm`` 0 measures the norm only."""
        loss = self.forward_backward(batch)
        parameters = self.parameters()
        if max_norm > 0:
            norm = clip_gradients(parameters, self.specs, self.axes, self.device, max_norm=max_norm)
        else:
            norm = gradient_norm(parameters, self.specs, self.axes, self.device)
        self.optimizer.set_rate(rate)
        self.optimizer.step()
        return StepResult(loss=float(loss), grad_norm=float(norm))

    def _split(self, batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        parts = {name: value.chunk(self.plan.microbatches) for name, value in batch.items()}
        return [
            {name: chunks[index] for name, chunks in parts.items()}
            for index in range(self.plan.microbatches)
        ]

    def _average_unreduced(self) -> None:
        if self.axes.dp.size == 1:
            return
        for parameter in self._unreduced:
            if parameter.grad is not None:
                parameter.grad /= self.axes.dp.size
        _sum_gradients(self._unreduced, self.axes.dp)

    def _sum_partial_gradients(self) -> None:
        chosen = [p for fqn, p in self.parameters().items() if self.specs[fqn].partial_grad]
        _sum_gradients(chosen, self.axes.tp)

    def _sum_tied_gradients(self) -> None:
        parameters = self.parameters()
        for fqn, axis in self.axes.tied.items():
            _sum_gradients([parameters[fqn]], axis)

    def _share_loss(self, loss: Tensor | None) -> Tensor:
        shared = torch.zeros((), dtype=torch.float64, device=self.device)
        if loss is not None:
            shared += loss.detach()
        # Only the last stage has a loss: over pp the sum is a broadcast.
        for axis in (self.axes.pp, self.axes.dp):
            if axis.size > 1:
                dist.all_reduce(shared, group=axis.group)
        return shared / self.axes.dp.size


def _unreduced(modules: Sequence[nn.Module], *, sharded: bool) -> list[nn.Parameter]:
    """Parameters whose gradients nobody averages over data ranks: neither FSDP2 nor DDP."""
    bare = [m for m in modules if not isinstance(m, DistributedDataParallel)]
    held = dict.fromkeys(parameter for module in bare for parameter in module.parameters())
    return [p for p in held if not (sharded and isinstance(p, DTensor))]


def _sum_gradients(parameters: list[nn.Parameter], axis: Axis) -> None:
    """Sum gradients over the axis, in one all_reduce a dtype."""
    if axis.size == 1:
        return
    grads = [grad for p in parameters if (grad := local_gradient(p)) is not None]
    for dtype in sorted({grad.dtype for grad in grads}, key=str):
        same = [grad for grad in grads if grad.dtype == dtype]
        flat = torch.cat([grad.reshape(-1) for grad in same])
        dist.all_reduce(flat, group=axis.group)
        for grad, total in zip(same, torch.split(flat, [g.numel() for g in same]), strict=True):
            grad.copy_(total.view_as(grad))
