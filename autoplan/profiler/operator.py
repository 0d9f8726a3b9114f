"""One operator on tensors of its own: make the operands, run it, run its backward."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autoplan import runtime
from autoplan.ir.fields import Json
from autoplan.ir.graph import Arg, Bound, Const, Ref
from autoplan.ir.graph_record import OpRecord
from autoplan.ir.record import op_from_record
from autoplan.runtime import Axis

__all__ = ["Operands", "Operator", "lone_axis"]

_NUMBER = 0.5  # in place of a number that differs between the blocks of a class


class _Unkept(torch.autograd.Function):
    """The tensor itself; its gradient is dropped, as soon as it is there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


Operands = list[Tensor]


def lone_axis(ranks: int) -> Axis:
    """First rank of an axis whose other ranks are not there."""
    group: Any = object()
    return Axis(group=group if ranks > 1 else None, rank=0, size=ranks)


class Operator:
    """A target of `autoplan.profiler.targets` on a device."""

    def __init__(self, record: dict[str, Json], device: torch.device) -> None:
        self.signature = str(record["signature"])
        library = record["library"]
        if isinstance(library, str) and library:
            importlib.import_module(library)
        self._op = op_from_record(OpRecord.model_validate(record["op"]))
        self._call, self._ranks = str(record["call"]), int(str(record["ranks"]))
        self._operands: Any = record["operands"]
        self._tensors: Any = record["tensors"]
        self._device = device
        self._function = self._find()

    def _find(self) -> Callable[..., Any]:
        if self._call:
            function: Callable[..., Any] = getattr(runtime, self._call)
            return function
        namespace, name, overload = self._op.target.split(".")
        found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        return found

    def operands(self) -> Operands:
        """New operands, one for each distinct tensor."""
        made: dict[int, Tensor] = {}
        for number, operand in zip(self._tensors, self._operands, strict=True):
            if number not in made:
                shape, dtype, grad, below, ascend, _ = operand
                make = self._ascending if ascend else self._random
                made[number] = make(tuple(shape), getattr(torch, dtype), grad, below)
        return [made[number] for number in sorted(made)]

    def computed(self, operands: Operands) -> list[Tensor]:
        """Those that an operator before has just computed: all but what the block holds."""
        held = {n: o[-1] for n, o in zip(self._tensors, self._operands, strict=True)}
        return [x for x, n in zip(operands, sorted(held), strict=True) if not held[n]]

    def _ascending(
        self, shape: tuple[int, ...], dtype: torch.dtype, grad: bool, below: int
    ) -> Tensor:
        count = math.prod(shape)
        steps = torch.arange(count, device=self._device) * below // max(1, count)
        return steps.to(dtype).view(shape)

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype, grad: bool, below: int) -> Tensor:
        if dtype == torch.bool:
            return torch.rand(shape, device=self._device) > 0.5
        if not dtype.is_floating_point:
            return torch.randint(below, shape, dtype=dtype, device=self._device)
        # In (0, 1): in the domain of logarithms and roots, and of targets that are probabilities.
        x = torch.rand(shape, device=self._device).to(dtype)
        return x.requires_grad_(grad)

    def __call__(self, operands: Operands) -> list[Tensor]:
        """Results that are tensors; gradients of operands are dropped where they arrive."""
        slots = iter([operands[number] for number in self._tensors])
        args = [self._argument(arg, slots) for arg in self._op.args]
        kwargs = {key: self._argument(value, slots) for key, value in self._op.kwargs}
        if self._call:
            kwargs["axis"] = lone_axis(self._ranks)
        result = self._function(*args, **kwargs)
        made = list(result) if isinstance(result, tuple | list) else [result]
        return [x for x in made if isinstance(x, Tensor)]

    @staticmethod
    def unkept(operands: Operands) -> Operands:
        """Operands in front of which gradients are dropped."""
        return [_Unkept.apply(x) if x.requires_grad else x for x in operands]  # type: ignore[no-untyped-call]

    def _argument(self, arg: Arg, slots: Any) -> Any:
        match arg:
            case Ref():
                return next(slots)
            case Const("device", _):
                return self._device
            case Const(_, name):
                return getattr(torch, name)
            case Bound():
                return _NUMBER
            case tuple():
                return [self._argument(item, slots) for item in arg]
        return arg
