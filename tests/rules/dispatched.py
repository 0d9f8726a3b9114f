"""Counts the calls of an operator that selective recompute's dispatch mode sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from autoplan.ir.strategy import OpStrategy
from autoplan.rules import localize
from autoplan.runtime import checkpointing, collectives

from .engine import Prepared, execute, on_ranks, place, threaded_reductions

__all__ = ["counted"]


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def _as_one_call(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """A collective is one operator to the mode, however the harness makes it up."""
    inner: Callable[..., Any] = getattr(where, name)

    def call(*args: Any, **kwargs: Any) -> None:
        modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        for mode in modes:
            if isinstance(mode, _Counter):
                mode.calls.append(name)
        with _disable_current_modes():
            inner(*args, **kwargs)

    monkeypatch.setattr(where, name, call)


def counted(
    monkeypatch: pytest.MonkeyPatch, found: Prepared, strategy: OpStrategy, ranks: int
) -> list[str]:
    """Names of the calls in the forward of the first rank."""
    threaded_reductions(monkeypatch)
    for where, name in (
        (dist, "all_reduce"),
        (dist, "all_to_all_single"),
        (collectives, "_all_gather_flat"),
    ):
        _as_one_call(monkeypatch, where, name)
    local = localize(found.op, found.block, strategy, ranks)

    def body(axis: Any) -> list[str]:
        inputs = [
            place(x.detach(), placement, axis.rank, ranks).clone().requires_grad_(x.requires_grad)
            for x, placement in zip(found.inputs, strategy.inputs, strict=True)
        ]
        counter = _Counter()
        with checkpointing._set(selecting=True), counter:
            execute(local, inputs, strategy.call, axis)
        return counter.calls[len(inputs) :]  # the harness copies each input first

    first: list[str] = on_ranks(ranks, body)[0]
    monkeypatch.undo()
    return first
