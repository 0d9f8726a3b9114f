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

# Constants of at most this many elements are told apart by value.
_SMALL = 1024


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
        log = _Log(_Places(self._module, self._stacks), _held(self._module, self._batch))
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
                        # Before the user's own hooks: what those do is the item's.
                        item.register_forward_pre_hook(_enter(log, path, key), prepend=True),
                        item.register_forward_hook(_leave(log)),
                    ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _held(module: nn.Module, batch: Mapping[str, Tensor]) -> dict[int, str]:
    """Name of each tensor that is there before the run, by identity."""
    named = [*module.named_parameters(), *module.named_buffers()]
    held = {id(tensor): f"batch {name}" for name, tensor in batch.items()}
    for fqn, tensor in named:
        held.setdefault(id(tensor), fqn)
    return held


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


def _enter(log: _Log, path: str, key: str) -> Callable[..., None]:
    def hook(*rest: Any) -> None:
        log.places.enter(path, key)
        log.open(f"{path}.{key}")

    return hook


def _leave(log: _Log) -> Callable[..., None]:
    def hook(*rest: Any) -> None:
        log.open("")

    return hook


@dataclass(frozen=True, slots=True)
class _Place:
    """An operator's result: the item at which it was made, and its number there.

    What runs after an item and before the next counts with it; ``stack`` is -1 before the
    first. ``walk`` counts how often the model has begun with a list anew, ``position`` is
    that in the list as it is now.
    """

    stack: int
    walk: int
    position: int
    number: int = 0
    result: int = 0


class _Places:
    """Where in the stacks the model is, and names of places that all repeats share."""

    def __init__(self, module: nn.Module, stacks: tuple[Stack, ...]) -> None:
        self.now = _Place(-1, 0, 0)
        self._lists = {path: index for index, stack in enumerate(stacks) for path in stack.paths}
        self._keys = [
            [key for key, _ in module.get_submodule(stack.paths[0]).named_children()]
            for stack in stacks
        ]
        self._periods = [
            {
                str(position): run.period
                for run in stack.runs
                for repeat in range(run.repeats)
                for position in run.items(repeat)
            }
            for stack in stacks
        ]

    def enter(self, path: str, key: str) -> None:
        """An item begins; those of several lists at one position are one."""
        stack = self._lists[path]
        position = self._keys[stack].index(key)
        if (stack, position) == (self.now.stack, self.now.position):
            return
        again = stack != self.now.stack or position < self.now.position
        self.now = _Place(stack, self.now.walk + again, position)

    def step(self) -> None:
        """One more operator at this place."""
        self.now = replace(self.now, number=self.now.number + 1)

    def name(self, place: _Place) -> tuple[object, ...]:
        """Place as seen from here: relative within the last period, else absolute."""
        result = (place.number, place.result)
        if place.stack < 0:
            return ("before", *result)
        if place.stack == self.now.stack and place.walk == self.now.walk:
            back = self._back(place.stack, place.position)
            if back is not None:
                return ("back", back, *result)
        return (place.stack, place.walk, self._keys[place.stack][place.position], *result)

    def owner(self, fqn: str) -> tuple[object, ...]:
        """Parameter or buffer as seen from here, by the item that has it."""
        for path, stack in self._lists.items():
            if stack != self.now.stack or not fqn.startswith(f"{path}."):
                continue
            key, _, rest = fqn.removeprefix(f"{path}.").partition(".")
            back = self._back(stack, self._keys[stack].index(key))
            if back is not None:
                return ("own", back, path, rest)
        return ("held", fqn)

    def _back(self, stack: int, position: int) -> int | None:
        """Items from a position to this one, where it is of the last period."""
        period = self._periods[stack].get(self._keys[stack][self.now.position], 1)
        back = self.now.position - position
        return back if 0 <= back <= period else None


@dataclass(slots=True)
class _Chunk:
    """Operators of one item in a row, and their numbers."""

    name: str
    tokens: list[Any] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tokens of the operators run, by chunk. Tensors are named by where they were made."""

    def __init__(self, places: _Places, held: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = places
        self.chunks = [_Chunk("")]
        self._held = held
        self._made: dict[int, _Place] = {}
        # Keeps results alive, so that no other tensor gets their identity.
        self._alive: list[Any] = []

    def open(self, name: str) -> None:
        """Begin a chunk; one without operators is dropped."""
        if self.chunks[-1] == _Chunk(""):
            self.chunks.pop()
        self.chunks.append(_Chunk(name))

    def _note(self, result: Tensor, index: int) -> None:
        if id(result) not in self._held:
            self._made[id(result)] = replace(self.places.now, result=index)
            self._alive.append(result)

    def seen(self, out: Any) -> None:
        """Results of a function: views among them are other objects than their operator's."""
        for index, result in _tensors(out):
            if id(result) not in self._made:
                self._note(result, index)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        is_free = binds_numbers(func._schema.name.partition("::")[2])
        named = tuple((kwargs or {}).items())
        self.chunks[-1].tokens.append(
            (
                func,
                tuple(self._argument(arg, is_free) for arg in args),
                tuple((key, self._argument(arg, is_free)) for key, arg in named),
            )
        )
        self.places.step()
        for index, result in _tensors(out):
            self._note(result, index)
        return out

    def _argument(self, value: Any, is_free: bool) -> Any:
        if is_free and is_bindable(value):
            self.chunks[-1].numbers.append(value)
            return "a number"
        return self._token(value)

    def _token(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return (
                "tensor", tuple(value.shape), value.dtype, value.requires_grad, self._name(value),
            )  # fmt: skip
        if isinstance(value, list | tuple):
            return tuple(map(self._token, value))
        if isinstance(value, dict):
            return tuple((key, self._token(item)) for key, item in value.items())
        return repr(value)

    def _name(self, value: Tensor) -> tuple[object, ...]:
        fqn = self._held.get(id(value))
        if fqn is not None:
            return self.places.owner(fqn)
        if id(value) not in self._made:
            # A constant, or a view that only the kernels of a function see.
            self._note(value, 0)
        name = self.places.name(self._made[id(value)])
        is_known = value.device.type == "meta" or value.numel() > _SMALL
        return name if is_known else (*name, tuple(value.flatten().tolist()))


def _tensors(out: Any) -> Iterator[tuple[int, Tensor]]:
    """Tensors among the results of a call, with their places."""
    for index, result in enumerate(out if isinstance(out, list | tuple) else (out,)):
        if isinstance(result, Tensor):
            yield index, result


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
        out = func(*args, **named)
        self._log.seen(out)
        return out
