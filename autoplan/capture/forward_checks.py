"""What a forward may not do because its trace would not show it: gradients and state of its own.

A trace holds the operators of one forward. A custom backward, a hook on a gradient, a step
of autograd within forward, a counter or a draw of Python's or numpy's random numbers leave no
operator, so a program made from the trace would silently compute something else. Seen are
attributes of modules, what containers and plain objects among them hold, and the generators
among them; not globals, closures or the clock.
"""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from autoplan.capture.failure import is_user_file, place, relative_line
from autoplan.errors import CaptureError

__all__ = ["watch_forward"]

_GRADIENTS = "the gradient of forward's operators is all that a plan can hold"
_REFUSED: dict[Any, tuple[str, str]] = {
    Tensor.register_hook: ("a hook on a gradient can't be traced", "remove it"),
    Tensor.register_post_accumulate_grad_hook: (
        "a hook on a gradient can't be traced", "remove it",
    ),
    Tensor.backward: ("backward() runs within forward", _GRADIENTS),
    torch.autograd.grad: ("torch.autograd.grad runs within forward", _GRADIENTS),
    torch.autograd.backward: ("backward() runs within forward", _GRADIENTS),
    Tensor.data.__set__: (  # type: ignore[attr-defined]
        "the data of a tensor is replaced within forward", "change parameters outside of forward",
    ),
}  # fmt: skip
# Operators registered with torch.library stay whole: what they may be is checked by name.
_OF_TORCH = {checkpoint.__name__, "torch._library.autograd"}
_TORCH = tuple(torch.__path__)
_OURS = str(Path(__file__).parent)
_PLAIN = (bool, int, float, str)
# How deep state inside state is looked at, and how many things of one container.
_DEPTH, _MANY = 3, 1000
_OF_MODULES = set(vars(nn.Module()))


@contextmanager
def watch_forward(
    module: nn.Module, batch: Mapping[str, Tensor], *, name: str
) -> Iterator[dict[str, str]]:
    """Context of an export: CaptureError for what the trace of ``module(**batch)`` can't show.

    Gives the names of the buffers that forward puts another tensor in place of, known at the
    end of the context, each with its source line.
    """
    assigned: dict[str, str] = {}
    state = _state(module)
    draws = _draws()
    # Export puts attributes back when it is done, so they are looked at as forward ends.
    seen: list[dict[tuple[str, str], Any]] = []
    buffers: dict[str, Tensor] = {}

    def start(*_: Any) -> None:
        buffers.update(module.named_buffers())

    def end(*_: Any) -> None:
        seen.append(_state(module))
        for fqn, buffer in module.named_buffers():
            if fqn in buffers and buffers[fqn] is not buffer:
                path, key = fqn.rpartition(".")[::2]
                assigned[fqn] = _line_of_assignment(module.get_submodule(path), key)

    handles = module.register_forward_pre_hook(start), module.register_forward_hook(end)
    apply = torch.autograd.Function.apply
    autocast = torch.autocast.__init__
    register = nn.Module.register_parameter

    def watched_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is checkpoint.CheckpointFunction:
            # Recomputing changes no value, and whether to do it is the plan's decision.
            return args[0](*args[2:])
        if cls.__module__ not in _OF_TORCH:
            raise _refusal(
                f"the gradient of {cls.__name__} is a function of its own "
                "(torch.autograd.Function), which can't be traced",
                "write forward with torch's operators, whose gradients are known",
                module,
                name,
            )
        return apply.__func__(cls, *args, **kwargs)  # type: ignore[attr-defined]

    def watched_autocast(self: Any, *args: Any, **kwargs: Any) -> None:
        enabled = args[2] if len(args) > 2 else kwargs.get("enabled", True)
        if enabled:
            raise _refusal(
                "autocast is switched on within forward",
                "leave it out: --dtype is the precision that the model trains in",
                module,
                name,
            )
        autocast(self, *args, **kwargs)

    def watched_register(self: nn.Module, key: str, parameter: nn.Parameter | None) -> None:
        if _called_by_user():
            raise _refusal(
                f"forward makes a new parameter {key}", "make it in __init__", module, name
            )
        register(self, key, parameter)

    with ExitStack() as stack:
        for owner, key, replacement in (
            (torch.autograd.Function, "apply", classmethod(watched_apply)),
            (torch.autocast, "__init__", watched_autocast),
            (nn.Module, "register_parameter", watched_register),
        ):
            stack.enter_context(_replaced(owner, key, replacement))
        stack.enter_context(_Refuse(module, name))
        for handle in handles:
            stack.callback(handle.remove)
        yield assigned
    for after in seen[:1]:
        _check_state(module, state, after, name)
    if _draws() != draws:
        where = _line_of_draw(module, batch)
        raise CaptureError(
            f"{name}: forward draws from Python's random numbers{where}, which a trace freezes",
            hint="draw with torch, or make the number an input that batch() returns",
        )


@contextmanager
def _replaced(owner: type, key: str, value: Any) -> Iterator[None]:
    before = vars(owner)[key]
    setattr(owner, key, value)
    try:
        yield
    finally:
        setattr(owner, key, before)


class _Refuse(TorchFunctionMode):
    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self._module, self._name = module, name

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _REFUSED and _called_by_user():
            what, hint = _REFUSED[func]
            raise _refusal(what, hint, self._module, self._name)
        return func(*args, **(kwargs or {}))


def _refusal(what: str, hint: str, module: nn.Module, name: str) -> CaptureError:
    path, line = place(_frames(), module)
    where = f"{name}: {path or type(module).__name__}" + (f" at {line}" if line else "")
    return CaptureError(f"{where}: {what}", hint=hint)


def _frames() -> list[tuple[FrameType, int]]:
    """Frames of the call, outermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]


def _called_by_user() -> bool:
    """Whether torch was called by the code of forward, rather than by its own export."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, *_TORCH)):
        if frame.f_code.co_name == "export_trace":
            return False
        frame = frame.f_back
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _state(module: nn.Module) -> dict[tuple[str, str], Any]:
    """What the modules hold as plain attributes, in a form that can be compared."""
    return {
        (path, key): _frozen(value, _DEPTH)
        for path, child in module.named_modules()
        for key, value in vars(child).items()
        if key not in _OF_MODULES
    }


def _frozen(value: Any, depth: int) -> Any:
    """Numbers, texts, containers and generators by value, objects by their attributes."""
    if value is None or type(value) in _PLAIN:
        return value if value == value else "nan"
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return str(value.get_state())
    if isinstance(value, dict):
        keys = list(islice(value, _MANY)) if depth else []
        return len(value), [(str(key), _frozen(value[key], depth - 1)) for key in keys]
    if isinstance(value, list | tuple | deque):
        items = islice(value, _MANY) if depth else ()
        return len(value), [_frozen(item, depth - 1) for item in items]
    if isinstance(value, set | frozenset):
        return len(value), sorted(map(str, islice(value, _MANY))) if depth else ()
    if isinstance(value, nn.Module | Tensor | type) or callable(value) or not depth:
        return None
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    # Configurations of libraries note how they are used, which no step computes with.
    return None if "-packages" in file else _frozen(getattr(value, "__dict__", None), depth - 1)


def _check_state(
    module: nn.Module,
    before: dict[tuple[str, str], Any],
    after: dict[tuple[str, str], Any],
    name: str,
) -> None:
    for (path, key), value in after.items():
        if (path, key) in before and before[path, key] != value:
            line = _line_of_assignment(module.get_submodule(path), key)
            where = f" ({line})" if line else ""
            raise CaptureError(
                f"{name}: forward of {path or type(module).__name__} changes its attribute "
                f"{key}{where}, or what that holds, which a trace freezes",
                hint="make it an input that batch() returns, or change it outside of forward",
            )


def _line_of_assignment(module: nn.Module, key: str) -> str:
    try:
        lines, first = inspect.getsourcelines(type(module).forward)
        file = inspect.getsourcefile(type(module)) or ""
    except (OSError, TypeError):
        return ""
    for number, line in enumerate(lines, first):
        if re.search(rf"\bself\.{re.escape(key)}\b", line):
            return relative_line(file, number)
    return ""


def _draws() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state())


def _line_of_draw(module: nn.Module, batch: Mapping[str, Tensor]) -> str:
    """Line of the first draw when forward runs again without being traced."""
    owners = {id(random.getrandbits.__self__), id(np.random.mtrand._rand)}  # type: ignore[attr-defined]
    found: list[str] = []

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and not found and id(getattr(arg, "__self__", None)) in owners:
            user: FrameType | None = frame
            while user is not None and not is_user_file(user.f_code.co_filename):
                user = user.f_back
            if user is not None:
                found.append(relative_line(user.f_code.co_filename, user.f_lineno))

    sys.setprofile(profile)
    try:
        module(**batch)
    except Exception:
        # Only the line is wanted, and it comes before whatever fails without a trace.
        pass
    finally:
        sys.setprofile(None)
    return f" ({found[0]})" if found else ""
