"""A rank's stages in a pipeline schedule of ``torch.distributed.pipelining``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from .mesh import MeshAxes
from .planfile import BoundaryTensor, ProgramPlan

__all__ = ["SPLIT", "Pipeline"]

_SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved1f1b": "ScheduleInterleaved1F1B",
    "loopedbfs": "ScheduleLoopedBFS",
    "interleavedzerobubble": "ScheduleInterleavedZeroBubble",
    "zbvzerobubble": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}

SPLIT = ("interleavedzerobubble", "zbvzerobubble", "dualpipev")
"""Schedules that run some backwards in two parts, which hooks of parameters do not see."""

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


def _own(stage: nn.Module, args: Any, output: Any) -> Any:
    """Output in storage of its own: the first part of a backward detaches it in place."""
    tensors = (output,) if isinstance(output, Tensor) else output
    own = tuple(t.clone() if t._is_view() else t.contiguous() for t in tensors)
    return own[0] if isinstance(output, Tensor) else own


class _Sendable(torch.autograd.Function):
    """The tensor itself; its gradient in the order in which it can be sent."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def _sendable(stage: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Inputs whose gradients can be sent as the first part of a backward makes them."""
    return tuple(_Sendable.apply(t) if t.requires_grad else t for t in args)  # type: ignore[no-untyped-call]


def _strip(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {name.removeprefix(_PREFIX): value for name, value in kwargs.items()}


class Pipeline:
    """A schedule over the stages of a plan; `step` runs it for those of this rank.

    ``modules`` are ``stages`` or what wraps them on the data axis.

    The shapes at a stage's ends come from the plan, so nothing is run to find them out.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        modules: Sequence[nn.Module],
        *,
        plan: ProgramPlan,
        axes: MeshAxes,
        device: torch.device,
    ) -> None:
        for stage in stages:
            stage.register_forward_pre_hook(_strip, with_kwargs=True)
            if plan.schedule in SPLIT:
                stage.register_forward_pre_hook(_sendable)
                stage.register_forward_hook(_own)
            else:
                stage.register_forward_hook(_contiguous)
        last = len(plan.stages) - 1
        indices = plan.stages_on(axes.pp.rank)
        self._last = last in indices
        self._microbatches, self._device = plan.microbatches, device
        pieces = [
            PipelineStage(
                module,
                index,
                len(plan.stages),
                device,
                input_args=_examples(plan.boundary(index)),
                output_args=_examples(
                    (plan.loss(),) if index == last else plan.boundary(index + 1)
                ),
                group=axes.pp.group,
            )
            for index, module in zip(indices, modules, strict=True)
        ]
        schedule = getattr(schedules, _SCHEDULES[plan.schedule])
        self._looped = issubclass(schedule, schedules.PipelineScheduleMulti)
        if self._looped:
            # Torch would divide the gradient of a parameter once for each stage that uses it.
            self._schedule = schedule(
                pieces, plan.microbatches, loss_fn=self._share, scale_grads=False
            )
        else:
            self._schedule = schedule(*pieces, plan.microbatches, loss_fn=_identity)

    def step(self, batch: dict[str, Tensor]) -> Tensor | None:
        """Mean loss of the microbatches on the last stage's rank, None elsewhere.

        The gradient of that mean is accumulated into the parameters of the stages.
        """
        losses: list[Tensor] = []
        target = torch.zeros(self._microbatches, device=self._device) if self._last else None
        arguments: dict[str, Any] = {_PREFIX + name: value for name, value in batch.items()}
        self._schedule.step(target=target, losses=losses, return_outputs=False, **arguments)
        if not self._last:
            return None
        found = torch.stack([loss.detach() for loss in losses])
        return found.sum() if self._looped else found.mean()

    def _share(self, output: Tensor, target: Tensor) -> Tensor:
        return output / self._microbatches
