"""What FSDP2 takes to gather the parameters of a unit and to reduce their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from autoplan.profiles.measure.device import Device, Passes
from autoplan.profiles.measure.steady import Measured, Sample, measure_steadily, sample_of

__all__ = ["UnitSize", "measure_units"]

_UNITS = 6
_REPEATS = 15

UnitSize = tuple[int, int]
"""Parameters of a unit, and their elements together."""


class _Use(torch.autograd.Function):
    """``x``; the gradients of the parameters are memory that nobody has written."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.shapes = [p.shape for p in parameters]
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return (grad, *(grad.new_empty(shape) for shape in ctx.shapes))


class _Unit(nn.Module):
    def __init__(self, parameters: int, numel: int) -> None:
        super().__init__()
        self.held = nn.ParameterList(torch.zeros(numel // parameters) for _ in range(parameters))

    def forward(self, x: Tensor) -> Tensor:
        return _Use.apply(x, *self.held)  # type: ignore[no-untyped-call,no-any-return]


@dataclass(frozen=True, slots=True)
class _Task:
    """Units to run, with FSDP2 or without, of which one pass is timed."""

    size: UnitSize
    sharded: bool
    backward: bool


class _Units:
    """The units of the last task, which the next one often shares."""

    def __init__(self, device: Device, say: Callable[[str], None]) -> None:
        self._device = device
        self._passes = Passes(device)
        self._mesh = init_device_mesh(device.kind, (dist.get_world_size(),))
        self._say = say
        self._made: tuple[UnitSize, bool] | None = None
        self._units = nn.Sequential()

    def seconds(self, task: _Task) -> Sample:
        """Seconds of a pass through one unit, on this rank."""
        if self._made != (task.size, task.sharded):
            self._make(task)
        times = [self._step()[task.backward] for _ in range(_REPEATS)]
        return sample_of(times, mean=True)

    def _make(self, task: _Task) -> None:
        parameters, numel = task.size
        self._units = nn.Sequential(*(_Unit(parameters, numel) for _ in range(_UNITS)))
        self._units.to(self._device.place)
        if task.sharded:
            self._say(f"FSDP2 unit of {parameters} parameters, {numel * 4 // 1024} KiB")
            for unit in (*self._units, self._units):
                fully_shard(unit, mesh=self._mesh)
        self._made = task.size, task.sharded
        for _ in range(3):
            self._step()

    def _step(self) -> tuple[float, float]:
        for parameter in self._units.parameters():
            parameter.grad = None
        x = torch.zeros(8, device=self._device.place, requires_grad=True)
        dist.barrier()
        forward, backward = self._passes(
            lambda: self._units(x), lambda y: y.backward(torch.ones_like(y))
        )
        return forward / _UNITS, backward / _UNITS


def measure_units(
    device: Device,
    together: Callable[..., list[float]],
    reference: Callable[[], float],
    sizes: Sequence[UnitSize],
    say: Callable[[str], None],
) -> list[dict[str, object]]:
    """Records of `UnitTiming`; what the units take without FSDP2 is taken off."""
    units = _Units(device, say)

    def measure(task: _Task) -> Sample:
        sample = units.seconds(task)
        seconds, spread = together(sample.seconds, sample.spread)
        return Sample(seconds=seconds, spread=spread, repeats=sample.repeats)

    tasks = [
        _Task(size, sharded, backward)
        for size in sizes
        for sharded in (True, False)
        for backward in (False, True)
    ]
    measured = {one.what: one for one in measure_steadily(tasks, measure, reference, say=say)}
    return [_record(size, measured) for size in sizes]


def _record(size: UnitSize, measured: dict[_Task, Measured[_Task]]) -> dict[str, object]:
    passes = []
    for backward in (False, True):
        sharded, plain = (measured[_Task(size, s, backward)].sample for s in (True, False))
        passes.append(max(1e-9, sharded.seconds - plain.seconds))
    both = [measured[_Task(size, True, backward)] for backward in (False, True)]
    return {
        "parameters": size[0],
        "numel": size[1],
        "forward": f"{passes[0]:.9g} s",
        "backward": f"{passes[1]:.9g} s",
        "spread": round(max(one.sample.spread for one in both), 4),
        "repeats": _REPEATS,
        "pace": round(max(1.0, *(one.pace for one in both)), 4),
    }
