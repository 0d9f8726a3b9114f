"""Models named as ``file.py:factory``, and the bundled nanogpt in the same form."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.capture.build import BuiltModule, build_on_meta, to_dtype
from autoplan.capture.source import Form, ModelSource, near_matches, torch_dtype
from autoplan.errors import CaptureError, InputError, UsageError
from autoplan.ir.plan import Json

__all__ = ["PythonFileSource", "python_file_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFileSource(ModelSource):
    """A model that ``factory(**overrides)`` of a Python file returns."""

    name: str
    spec: str
    form: Form
    overrides: Mapping[str, Json]
    config: Mapping[str, Json]
    file_digest: str
    _factory: Callable[..., Any] = field(repr=False, compare=False)
    _batch: Callable[..., Any] = field(repr=False, compare=False)

    def build(
        self, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
    ) -> nn.Module:
        """Module in training mode whose ``forward(**batch)`` is the scalar loss."""
        module = self._make()
        module.train()
        to_dtype(module, torch_dtype(dtype))
        return module.to(device)

    def build_for_trace(self, *, dtype: str | torch.dtype) -> BuiltModule:
        """The same module on the meta device."""
        return build_on_meta(self._make, dtype=torch_dtype(dtype))

    def _make(self) -> nn.Module:
        module = _call(self._factory, self.overrides, self.spec)
        if not isinstance(module, nn.Module):
            raise InputError(
                f"{self.spec}: returns {type(module).__name__}, not a torch.nn.Module",
                hint="the factory must return the module whose forward gives the loss",
            )
        return module

    def batch(
        self, batch_size: int, seq_len: int, *, seed: int = 0, device: str | torch.device = "cpu"
    ) -> dict[str, Tensor]:
        """What the file's ``batch(batch_size, seq_len)`` gives, by name.

        Overrides that are parameters of ``batch`` too are passed on to it.
        """
        known = inspect.signature(self._batch).parameters
        arguments = {key: value for key, value in self.overrides.items() if key in known}
        arguments |= {"batch_size": batch_size, "seq_len": seq_len}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            value = _call(self._batch, arguments, self.spec)
        if isinstance(value, Tensor):
            value = (value,)
        if isinstance(value, tuple | list):
            value = dict(zip(self._forward_names(), value, strict=False))
        if not isinstance(value, dict) or not all(isinstance(v, Tensor) for v in value.values()):
            raise CaptureError(
                f"{self.spec}: batch() returns {type(value).__name__}",
                hint="return a dict of tensors by the names of forward's parameters",
            )
        return {str(key): tensor.to(device) for key, tensor in value.items()}

    def _forward_names(self) -> list[str]:
        module = build_on_meta(self._make, dtype=torch.float32).module
        return list(inspect.signature(module.forward).parameters)

    def reduced(self, *, layers: int, tp: int) -> PythonFileSource | None:
        """A small nanogpt; None for a user's file, whose sizes only its author knows."""
        if self.form != "builtin":
            return None
        small: dict[str, Json] = {
            "n_layer": layers, "n_head": 2 * tp, "n_embd": 32 * tp, "vocab_size": 64 * tp,
            "block_size": 128,
        }  # fmt: skip
        return replace(self, overrides={**self.overrides, **small})


def python_file_source(
    path: Path, factory: str, *, name: str, spec: str, form: Form, overrides: Mapping[str, Json]
) -> PythonFileSource:
    """Source of a factory in a Python file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} can't be read: {error.strerror}", hint="write it as path/to/file.py:factory"
        ) from error
    module = _load(path, hashlib.sha256(content).hexdigest())
    functions = {
        key: value
        for key, value in vars(module).items()
        if (inspect.isroutine(value) or inspect.isclass(value))
        and getattr(value, "__module__", None) == module.__name__
        and not key.startswith("_")
    }
    if factory not in functions:
        what = f"no function {factory!r}" if factory else "no factory named"
        raise UsageError(
            f"{path}: {what}",
            hint=f"write {path.name}:factory; {near_matches(factory, functions, what='functions')}",
        )
    batch = functions.get("batch")
    if batch is None:
        raise UsageError(
            f"{path}: no function batch(batch_size, seq_len)",
            hint="add one that returns a dict of example inputs by forward's parameter names",
        )
    _check_overrides(functions[factory], overrides, f"{path.name}:{factory}")
    return PythonFileSource(
        name=name,
        spec=spec,
        form=form,
        overrides=dict(overrides),
        config={},
        file_digest=hashlib.sha256(content).hexdigest() if form == "file" else "",
        _factory=functions[factory],
        _batch=batch,
    )


def _check_overrides(factory: Callable[..., Any], overrides: Mapping[str, Json], spec: str) -> None:
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for key in overrides:
        if key not in parameters:
            raise UsageError(
                f"{spec} has no parameter {key!r}",
                hint=near_matches(key, parameters, what="parameters"),
            )


def _load(path: Path, digest: str) -> ModuleType:
    name = f"autoplan_model_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file", hint="write it as path/to/file.py:factory")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(
            f"{path}: {_where(error, path)}{type(error).__name__}: {error}",
            hint=f"run python {path} to see the whole error",
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _call(function: Callable[..., Any], arguments: Mapping[str, Any], spec: str) -> Any:
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:
        file = Path(function.__code__.co_filename) if inspect.isfunction(function) else Path(spec)
        raise InputError(
            f"{spec}: {function.__name__} fails: {_where(error, file)}"
            f"{type(error).__name__}: {error}",
            hint="run it in Python by itself",
        ) from error


def _where(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return f"line {frames[-1].lineno}: " if frames else ""
