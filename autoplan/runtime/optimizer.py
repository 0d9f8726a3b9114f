"""Optimizers: torch's own on float32 parameters, over flat buffers where state is sharded.

ZeRO 2 and 3 (FSDP2) hold float32 shards already and need nothing of this. ZeRO 0 and 1 hold
whole parameters in the compute dtype: `FlatOptimizer` lays them out in one buffer a group,
keeps a float32 master of this rank's range of it (or none), updates that, and gathers the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .axis import Axis
from .collectives import gather_flat
from .moments import ChunkedAdamW

__all__ = ["FlatOptimizer", "Optimizer", "ShardedOptimizer", "learning_rate"]


def learning_rate(step: int, *, peak: float, warmup: int, steps: int, floor: float = 0.1) -> float:
    """Rate of a step (from 0): linear warmup, then a cosine down to ``floor`` x ``peak``."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def _inner(
    name: str, groups: list[dict[str, Any]], rate: float, *, master: bool = True
) -> torch.optim.Optimizer:
    bits = {"adamw": 32, "adamw-bf16": 16, "adamw-8bit": 8}.get(name)
    if bits is not None and (bits < 32 or not master):
        return ChunkedAdamW(groups, rate=rate, bits=bits)
    if name == "adamw":
        # One pass over the states instead of one for each of a dozen operators.
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)
    if name in ("sgd", "sgd-momentum"):
        # Torch has no fused SGD of DTensors.
        whole = not any(isinstance(p, DTensor) for group in groups for p in group["params"])
        momentum = 0.9 if name == "sgd-momentum" else 0.0
        return torch.optim.SGD(groups, lr=rate, momentum=momentum, fused=whole)
    raise ValueError(f"unknown optimizer {name!r}")


def _decays(parameter: Tensor) -> bool:
    # Norm weights and biases are not decayed.
    return parameter.dim() >= 2


def _split(parameters: Mapping[str, nn.Parameter]) -> list[tuple[bool, list[nn.Parameter]]]:
    trainable = list({id(p): p for p in parameters.values() if p.requires_grad}.values())
    # Torch updates a group at once, and not shards of FSDP2 along with whole tensors.
    return [
        (d, [p for p in trainable if (_decays(p), isinstance(p, DTensor)) == (d, sharded)])
        for d in (True, False)
        for sharded in (True, False)
    ]


class Optimizer:
    """What both optimizers do: one update, and a rate that the schedule sets."""

    inner: torch.optim.Optimizer

    def set_rate(self, rate: float) -> None:
        """Learning rate of the next step."""
        for group in self.inner.param_groups:
            group["lr"] = rate

    def step(self) -> None:
        """Update the parameters from their gradients."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Take over parameter values that were changed from outside."""

    def state_tensors(self) -> list[Tensor]:
        """What is kept beside the parameters from step to step, masters and moments.

        Torch's counters of steps, a scalar a tensor, are left out.
        """
        if isinstance(self.inner, ChunkedAdamW):
            return self.inner.state_tensors()
        held = (v for state in self.inner.state.values() for v in state.values())
        tensors = [v for v in held if isinstance(v, Tensor) and v.dim() > 0]
        return [v.to_local() if isinstance(v, DTensor) else v for v in tensors]


class ShardedOptimizer(Optimizer):
    """Torch's optimizer on parameters that are float32 already (FSDP2 shards)."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        name: str,
        rate: float,
        weight_decay: float,
    ) -> None:
        groups = [
            {"params": chosen, "weight_decay": weight_decay if decays else 0.0}
            for decays, chosen in _split(parameters)
            if chosen
        ]
        self.inner = _inner(name, groups, rate)

    def step(self) -> None:
        """Update the shards."""
        self.inner.step()


class _Flat:
    """Parameters of one group as views into a buffer, and the float32 master of a range of it."""

    def __init__(self, parameters: Sequence[nn.Parameter], axis: Axis, *, master: bool) -> None:
        self.parameters, self.axis = list(parameters), axis
        numel = sum(p.numel() for p in parameters)
        self.length = -(-numel // axis.size)
        first = parameters[0]
        self.buffer = torch.zeros(self.length * axis.size, dtype=first.dtype, device=first.device)
        self.offsets: list[int] = []
        offset = 0
        for parameter in parameters:
            view = self.buffer[offset : offset + parameter.numel()].view_as(parameter)
            view.copy_(parameter.detach())
            parameter.data = view
            self.offsets.append(offset)
            offset += parameter.numel()
        self.start = axis.rank * self.length
        own = self.own()
        # Parameters that are precise enough, or meant to be, are their own master.
        wide = torch.promote_types(own.dtype, torch.float32) if master else own.dtype
        self.master = nn.Parameter(own.to(wide))

    def own(self) -> Tensor:
        return self.buffer[self.start : self.start + self.length]

    def gather_gradient(self) -> None:
        grad = torch.empty_like(self.master)
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            first = max(offset, self.start)
            last = min(offset + parameter.numel(), self.start + self.length)
            if first >= last:
                continue
            own = grad[first - self.start : last - self.start]
            if parameter.grad is None:
                own.zero_()
            else:
                own.copy_(parameter.grad.reshape(-1)[first - offset : last - offset])
        end = self.offsets[-1] + self.parameters[-1].numel()
        grad[max(0, end - self.start) :].zero_()  # what pads the buffer to whole shares
        self.master.grad = grad

    def publish(self) -> None:
        own = self.own()
        if own.data_ptr() != self.master.data_ptr():
            own.copy_(self.master.detach())
        self.master.grad = None
        if self.axis.size > 1:
            gather_flat(self.buffer, own.clone(), self.axis)


class FlatOptimizer(Optimizer):
    """Optimizer with float32 masters of whole parameters; ``axis`` shares the state out (ZeRO 1).

    Gradients must be equal on the ranks of the axis when `step` is called.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        axis: Axis,
        *,
        name: str,
        rate: float,
        weight_decay: float,
        master: bool = True,
    ) -> None:
        self._flats: list[_Flat] = []
        groups = []
        for decays, chosen in _split(parameters):
            for dtype in sorted({p.dtype for p in chosen}, key=str):
                flat = _Flat([p for p in chosen if p.dtype == dtype], axis, master=master)
                self._flats.append(flat)
                groups.append(
                    {"params": [flat.master], "weight_decay": weight_decay if decays else 0.0}
                )
        self.inner = _inner(name, groups, rate, master=master)

    def step(self) -> None:
        """Update this rank's range, then gather the ranges of all."""
        with torch.no_grad():
            for flat in self._flats:
                flat.gather_gradient()
            self.inner.step()
            for flat in self._flats:
                flat.publish()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over parameter values that were changed from outside."""
        for flat in self._flats:
            flat.master.copy_(flat.own())

    def state_tensors(self) -> list[Tensor]:
        """Masters that are tensors of their own, and moments."""
        masters = [
            flat.master.detach()
            for flat in self._flats
            if flat.master.data_ptr() != flat.own().data_ptr()
        ]
        return [*masters, *super().state_tensors()]
