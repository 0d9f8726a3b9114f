"""Proof that a shortened stack stands for the whole: both run once, on the meta device.

The operators of the whole model, with their shapes and numbers, are logged item by item,
and so are those of the short model. Written out for the items that were left out, the short
log must be the whole one. So whatever depends on an item's place or on the number of items
is seen at full depth, at the price of a run without kernels instead of an export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.capture.depth import Depth, DepthError, Stack, replicate, shortened
from autoplan.ir.graph import BlockInstance

__all__ = ["Witness"]

# Producers of differentiable tensors further back than this many chunks count as equally far,
# those of others whenever they are outside.
_NEAR = 2


class Witness:
    """The log of a model at full depth for one batch; `check` compares a short one with it."""

    def __init__(
        self, module: nn.Module, batch: Mapping[str, Tensor], stacks: tuple[Stack, ...]
    ) -> None:
        self._module = module
        self._batch = batch
        self._stacks = stacks
        self._ids: dict[Any, int] = {}
        self._whole = self._run()

    def check(self, stacks: tuple[Stack, ...], depth: Depth) -> None:
        """`DepthError` unless the stacks at that depth stand for the whole."""
        with shortened(self._module, stacks, keep=depth.repeats):
            short = self._run()
        if replicate(short, stacks, depth) != self._whole:
            raise DepthError("layers left out run other operators than those kept")

    def _run(self) -> list[BlockInstance]:
        """One entry for each chunk of operators run without entering or leaving an item.

        Equal chunks have equal numbers as their class.
        """
        log = _Log()
        try:
            with torch.random.fork_rng(devices=[]), _as_exporting(), self._watched(log), log:
                self._module(**self._batch)
        except Exception as error:
            # The user's forward may raise anything; its export will tell what and where.
            raise DepthError(f"no run on the meta device: {error}") from error
        chunks = [(name, tuple(tokens)) for name, tokens in log.chunks]
        return [
            BlockInstance(
                name=name or f"between_{index}",
                block_class=self._ids.setdefault(tokens, len(self._ids)),
                parameters=(),
                buffers=(),
            )
            for index, (name, tokens) in enumerate(chunks)
        ]

    @contextmanager
    def _watched(self, log: _Log) -> Iterator[None]:
        handles = []
        for stack in self._stacks:
            for path in stack.paths:
                for key, item in self._module.get_submodule(path).named_children():
                    handles += [
                        item.register_forward_pre_hook(_enter(log, f"{path}.{key}")),
                        item.register_forward_hook(_enter(log, "")),
                    ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _as_exporting() -> Iterator[None]:
    """Models that look at values of tensors leave that out while they are exported."""
    before = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = before


def _enter(log: _Log, name: str) -> Callable[..., None]:
    def hook(*rest: Any) -> None:
        if log.chunks[-1] == ("", []):
            log.chunks.pop()
        log.chunks.append((name, []))

    return hook


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tokens of the operators run, by chunk. Tensors are named by where they were made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.chunks: list[tuple[str, list[Any]]] = [("", [])]
        self._made: dict[int, tuple[int, int]] = {}
        # Keeps results alive, so that no other tensor gets their identity.
        self._alive: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tokens = self.chunks[-1][1]
        tokens.append((func, self._token(args), self._token(kwargs or {})))
        place = (len(self.chunks), len(tokens))
        for result in out if isinstance(out, list | tuple) else (out,):
            if isinstance(result, Tensor):
                self._made[id(result)] = place
                self._alive.append(result)
        return out

    def _token(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            chunk, index = self._made.get(id(value), (0, 0))
            far = _NEAR if value.requires_grad else 1
            distance = min(len(self.chunks) - chunk, far) if chunk else -1
            return (
                "tensor", tuple(value.shape), value.dtype, value.requires_grad, distance,
                index if distance == 0 else 0,
            )  # fmt: skip
        if isinstance(value, list | tuple):
            return tuple(map(self._token, value))
        if isinstance(value, dict):
            return tuple((key, self._token(item)) for key, item in value.items())
        return repr(value)
