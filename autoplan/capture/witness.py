"""Proof that a shortened stack stands for the whole: both run once, on the meta device.

The operators of the whole model, with their shapes and numbers, are logged item by item,
and so are those of the short model. Written out for the items that were left out, the short
log must be the whole one. So whatever depends on an item's place or on the number of items
is seen at full depth, at the price of a run without kernels instead of an export. Numbers
that blocks may have for themselves are logged apart, as those of each item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.capture.depth import Depth, DepthError, Stack, replicate, shortened
from autoplan.capture.numbers import binds_numbers
from autoplan.ir.graph import BlockInstance, is_bindable

__all__ = ["Witness"]

# Producers of differentiable tensors further back than this many chunks count as equally far,
# those of others whenever they are outside.
_NEAR = 2


class Witness:
    """The log of a model at full depth for one batch; `check` compares a short one with it.

    ``unused`` are the trainable parameters that its loss has no gradient for.
    """

    def __init__(
        self, module: nn.Module, batch: Mapping[str, Tensor], stacks: tuple[Stack, ...]
    ) -> None:
        self._module = module
        self._batch = batch
        self._stacks = stacks
        self._ids: dict[Any, int] = {}
        self.log, loss = self._run()
        reached = _reached(loss)
        self.unused = frozenset(
            fqn
            for fqn, parameter in module.named_parameters()
            if parameter.requires_grad and id(parameter) not in reached
        )

    def check(self, stacks: tuple[Stack, ...], depth: Depth) -> None:
        """`DepthError` unless the stacks at that depth stand for the whole."""
        with shortened(self._module, stacks, keep=depth.repeats):
            short, _ = self._run()
        written = replicate(short, stacks, depth)
        same = len(written) == len(self.log) and all(
            replace(one, numbers=other.numbers) == other
            and (not one.numbers or one.numbers == other.numbers)
            for one, other in zip(written, self.log, strict=True)
        )
        if not same:
            raise DepthError("layers left out run other operators than those kept")

    def _run(self) -> tuple[list[BlockInstance], Any]:
        """One entry for each chunk of operators run without entering or leaving an item, the loss.

        Equal chunks have equal numbers as their class.
        """
        log = _Log(_owned(self._module, self._stacks))
        try:
            with (
                torch.random.fork_rng(devices=[]),
                _as_exporting(),
                self._watched(log),
                log,
                _Calls(log),
            ):
                loss = self._module(**self._batch)
        except Exception as error:
            # The user's forward may raise anything; its export will tell what and where.
            raise DepthError(f"no run on the meta device: {error}") from error
        instances = [
            BlockInstance(
                name=chunk.name or f"between_{index}",
                block_class=self._ids.setdefault(tuple(chunk.tokens), len(self._ids)),
                parameters=(),
                buffers=(),
                numbers=tuple(chunk.numbers),
            )
            for index, chunk in enumerate(log.chunks)
        ]
        return instances, loss

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


def _owned(module: nn.Module, stacks: tuple[Stack, ...]) -> dict[int, tuple[str, str, str]]:
    """Path, key and name inside the item of each parameter of one, by identity."""
    owned: dict[int, tuple[str, str, str]] = {}
    for path in (path for stack in stacks for path in stack.paths):
        for fqn, parameter in module.get_submodule(path).named_parameters():
            key, _, rest = fqn.partition(".")
            owned.setdefault(id(parameter), (path, key, rest))
    return owned


def _reached(loss: Any) -> set[int]:
    """Identities of the parameters that a gradient of the loss flows to."""
    pending = [loss.grad_fn] if isinstance(loss, Tensor) and loss.grad_fn is not None else []
    seen, reached = {*pending}, set()
    while pending:
        node = pending.pop()
        reached.add(id(getattr(node, "variable", None)))
        following = {step for step, _ in node.next_functions if step is not None} - seen
        seen |= following
        pending += following
    return reached


@contextmanager
def _as_exporting() -> Iterator[None]:
    """Models that look at values of tensors leave that out while they are exported.

    So does an export with assertions on values, which there are none of on the meta device.
    """
    before = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    check = torch._check_tensor_all_with
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    torch._check_tensor_all_with = lambda *rest: None
    try:
        yield
    finally:
        torch._check_tensor_all_with = check
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = before


def _enter(log: _Log, name: str) -> Callable[..., None]:
    def hook(*rest: Any) -> None:
        if log.chunks[-1] == _Chunk(""):
            log.chunks.pop()
        log.chunks.append(_Chunk(name))
        if name:
            path, _, key = name.rpartition(".")
            log.entered[path] = key

    return hook


@dataclass(slots=True)
class _Chunk:
    """Operators of one item in a row, and their numbers."""

    name: str
    tokens: list[Any] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tokens of the operators run, by chunk. Tensors are named by where they were made.

    Parameters of items (``owned``) are too, if the item is not the one entered last.
    """

    def __init__(self, owned: Mapping[int, tuple[str, str, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owned = owned
        self.entered: dict[str, str] = {}
        self.chunks = [_Chunk("")]
        self._made: dict[int, tuple[int, int]] = {}
        # Keeps results alive, so that no other tensor gets their identity.
        self._alive: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tokens = self.chunks[-1].tokens
        is_free = binds_numbers(func._schema.name.partition("::")[2])
        named = tuple((kwargs or {}).items())
        tokens.append(
            (
                func,
                tuple(self._argument(arg, is_free) for arg in args),
                tuple((key, self._argument(arg, is_free)) for key, arg in named),
            )
        )
        place = (len(self.chunks), len(tokens))
        for result in out if isinstance(out, list | tuple) else (out,):
            if isinstance(result, Tensor):
                self._made[id(result)] = place
                self._alive.append(result)
        return out

    def _argument(self, value: Any, is_free: bool) -> Any:
        if is_free and is_bindable(value):
            self.chunks[-1].numbers.append(value)
            return "a number"
        return self._token(value)

    def _token(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            chunk, index = self._made.get(id(value), (0, 0))
            far = _NEAR if value.requires_grad else 1
            distance = min(len(self.chunks) - chunk, far) if chunk else -1
            path, key, rest = self._owned.get(id(value), ("", "", ""))
            return (
                "tensor", tuple(value.shape), value.dtype, value.requires_grad, distance,
                index if distance == 0 else 0,
                (path, key, rest) if self.entered.get(path) != key else (path, rest),
            )  # fmt: skip
        if isinstance(value, list | tuple):
            return tuple(map(self._token, value))
        if isinstance(value, dict):
            return tuple((key, self._token(item)) for key, item in value.items())
        return repr(value)


class _Calls(TorchFunctionMode):
    """Logs the numbers in calls of functions that are run as several operators."""

    def __init__(self, log: _Log) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        given = (*args, *named.values())
        self._log.chunks[-1].numbers += [value for value in given if isinstance(value, float)]
        return func(*args, **named)
