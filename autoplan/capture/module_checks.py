"""What a user's module may not be or hold, told before it is traced."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.parameter import is_lazy

from autoplan.capture.failure import relative_line
from autoplan.errors import CaptureError

__all__ = ["check_hooks", "check_module", "check_names", "check_tensor", "without_compile"]

_PLAIN = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def without_compile(module: nn.Module) -> nn.Module:
    """The module without ``torch.compile``, which changes no value: only names and speed."""
    while isinstance(module, OptimizedModule):
        module = module._orig_mod
    for child in list(module.modules()):
        child._compiled_call_impl = None
        for key, inner in child._modules.items():
            if isinstance(inner, OptimizedModule):
                child._modules[key] = without_compile(inner)
    return module


def check_module(module: nn.Module, *, name: str) -> None:
    """Raise CaptureError for wrappers, hooks, parameters and buffers that can't be planned."""
    check_hooks(module, name=name)
    for path, child in module.named_modules():
        where = f"{name}: {path or 'the model'}"
        kinds = {kind.__name__ for kind in type(child).__mro__} & _WRAPPERS
        if kinds:
            raise CaptureError(
                f"{where} is wrapped in {kinds.pop()}",
                hint="return the module inside: how it is distributed is what a plan decides",
            )
        if isinstance(child, torch.jit.ScriptModule):
            raise CaptureError(
                f"{where} is a scripted module ({child.original_name}), whose code can't be traced",
                hint="return the Python module, without torch.jit.script",
            )
    for fqn, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise CaptureError(
                f"{name}: parameter {fqn} has no shape yet (a lazy module)",
                hint="give the module its input size, as nn.Linear instead of nn.LazyLinear",
            )
        check_tensor(parameter, f"parameter {fqn}", name=name)
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise CaptureError(
                f"{name}: parameter {fqn} is {str(parameter.dtype).removeprefix('torch.')}",
                hint="make the model in float32; --dtype is the precision that it trains in",
            )
    for fqn, buffer in module.named_buffers():
        if is_lazy(buffer):
            raise CaptureError(
                f"{name}: buffer {fqn} has no shape yet (a lazy module)",
                hint="give the module its input size",
            )
        check_tensor(buffer, f"buffer {fqn}", name=name)


def check_tensor(tensor: Tensor, what: str, *, name: str) -> None:
    """Raise CaptureError unless the tensor is dense and real."""
    kind = ""
    if tensor.is_nested:
        kind = "a nested tensor"
    elif tensor.layout != torch.strided:
        kind = "a sparse tensor"
    elif tensor.is_quantized:
        kind = "a quantised tensor"
    elif tensor.is_complex():
        kind = "complex"
    if kind:
        raise CaptureError(
            f"{name}: {what} is {kind}",
            hint="use dense tensors of real numbers: padding for nested ones, index lists for "
            "sparse ones, torch.view_as_real for complex ones",
        )


def check_names(module: nn.Module, *, name: str) -> None:
    """Raise CaptureError for names that can't stand in a plan and its program."""
    named: Iterator[tuple[str, str]] = (
        (kind, path)
        for kind, paths in (
            ("module", module.named_modules()),
            ("parameter", module.named_parameters()),
            ("buffer", module.named_buffers()),
        )
        for path, _ in paths
    )
    for kind, path in named:
        if path and not _PLAIN.fullmatch(path):
            raise CaptureError(
                f"{name}: {kind} {path!r} has a name that a plan can't hold",
                hint="use letters, digits and _ in attribute names and ModuleDict keys",
            )


def check_hooks(module: nn.Module, *, name: str) -> None:
    """Raise CaptureError for hooks on gradients, which a traced forward doesn't show.

    Forward hooks are part of what is traced.
    """
    found: list[tuple[str, Any]] = []
    for path, child in module.named_modules():
        hooks = [*child._backward_hooks.values(), *child._backward_pre_hooks.values()]
        found += [(f"module {path}" if path else "the model", hook) for hook in hooks]
    for fqn, parameter in module.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = list((getattr(parameter, kind, None) or {}).values())
            found += [(f"parameter {fqn}", hook) for hook in hooks]
    for what, hook in found:
        raise CaptureError(
            f"{name}: {what} has a backward hook{_defined(hook)}, whose effect on gradients "
            "can't be traced",
            hint="remove it; clipping of gradients is part of the generated training loop",
        )


def _defined(hook: Callable[..., Any]) -> str:
    try:
        code = inspect.unwrap(hook).__code__
    except AttributeError:
        return ""
    return f" ({relative_line(code.co_filename, code.co_firstlineno)})"
