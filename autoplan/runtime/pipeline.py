"""A stage in a pipeline schedule of ``torch.distributed.pipelining``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from .mesh import MeshAxes
from .planfile import BoundaryTensor, ProgramPlan

__all__ = ["Pipeline"]

# A schedule's own step() has keywords like ``target``, which inputs of models are called too.
_PREFIX = "batch_input_"


def _examples(boundary: tuple[BoundaryTensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(
            tensor.shape,
            dtype=getattr(torch, tensor.dtype),
            device="meta",
            requires_grad=tensor.requires_grad,
        )
        for tensor in boundary
    )


def _identity(output: Tensor, target: Tensor) -> Tensor:
    return output


def _contiguous(stage: nn.Module, args: Any, output: Any) -> Any:
    """Output as it can be sent: a block may end in a view."""
    if isinstance(output, Tensor):
        return output.contiguous()
    return tuple(tensor.contiguous() for tensor in output)


def _strip(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {name.removeprefix(_PREFIX): value for name, value in kwargs.items()}


class Pipeline:
    """A schedule over the stages of a plan; `step` runs it for this rank's stage.

    ``module`` is ``stage`` or what wraps it on the data axis.

    The shapes at the stage's ends come from the plan, so nothing is run to find them out.
    """

    def __init__(
        self,
        stage: nn.Module,
        module: nn.Module,
        *,
        plan: ProgramPlan,
        axes: MeshAxes,
        device: torch.device,
    ) -> None:
        stage.register_forward_pre_hook(_strip, with_kwargs=True)
        stage.register_forward_hook(_contiguous)
        index = axes.pp.rank
        self._last = index == plan.pp - 1
        self._microbatches, self._device = plan.microbatches, device
        piece = PipelineStage(
            module,
            index,
            plan.pp,
            device,
            input_args=_examples(plan.boundary(index)),
            output_args=_examples((plan.loss(),) if self._last else plan.boundary(index + 1)),
            group=axes.pp.group,
        )
        schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[plan.schedule]
        self._schedule = schedule(piece, plan.microbatches, loss_fn=_identity)

    def step(self, batch: dict[str, Tensor]) -> Tensor | None:
        """Mean loss of the microbatches on the last stage, None elsewhere.

        The gradient of that mean is accumulated into the stage's parameters.
        """
        losses: list[Tensor] = []
        target = torch.zeros(self._microbatches, device=self._device) if self._last else None
        arguments: dict[str, Any] = {_PREFIX + name: value for name, value in batch.items()}
        self._schedule.step(target=target, losses=losses, return_outputs=False, **arguments)
        if not self._last:
            return None
        return torch.stack([loss.detach() for loss in losses]).mean()
