"""Models named as ``file.py:factory``, and the bundled nanogpt in the same form."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
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
from autoplan.capture.module_checks import check_module, check_tensor, without_compile
from autoplan.capture.source import Form, ModelSource, torch_dtype
from autoplan.errors import CaptureError, InputError, UsageError
from autoplan.ir.fields import Json
from autoplan.ir.names import near_matches

__all__ = ["PythonFileSource", "python_file_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFileSource(ModelSource):
    """A model that ``factory(**overrides)`` of a Python file returns.

    Overrides go to the factory, to ``batch``, or to both, by the names of their parameters.
    Floating inputs are cast to the dtype that the model computes in, as FSDP2 does it.
    """

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
        _cast_inputs(module, torch_dtype(dtype))
        return module.to(device)

    def build_for_trace(self, *, dtype: str | torch.dtype) -> BuiltModule:
        """The same module on the meta device."""
        built = build_on_meta(self._make, dtype=torch_dtype(dtype))
        _cast_inputs(built.module, torch_dtype(dtype))
        return built

    def _make(self) -> nn.Module:
        module = _call(self._factory, _accepted(self._factory, self.overrides), self.spec)
        if not isinstance(module, nn.Module):
            raise InputError(
                f"{self.spec}: returns {type(module).__name__}, not a torch.nn.Module",
                hint="the factory must return the module whose forward gives the loss",
            )
        module = without_compile(module)
        check_module(module, name=self.spec)
        return module

    def batch(
        self, batch_size: int, seq_len: int, *, seed: int = 0, device: str | torch.device = "cpu"
    ) -> dict[str, Tensor]:
        """What the file's ``batch(batch_size, seq_len)`` gives, by name."""
        arguments = _accepted(self._batch, self.overrides)
        arguments |= {"batch_size": batch_size, "seq_len": seq_len}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            value = _call(self._batch, arguments, self.spec)
        named = self._named(value)
        for key, tensor in named.items():
            check_tensor(tensor, f"input {key}", name=self.spec)
        return {key: tensor.detach().to(device) for key, tensor in named.items()}

    def _named(self, value: Any) -> dict[str, Tensor]:
        hint = "return a dict of tensors by the names of forward's parameters"
        if isinstance(value, Tensor):
            value = (value,)
        if isinstance(value, tuple | list):
            names = self._forward_names()
            if len(value) > len(names):
                raise CaptureError(
                    f"{self.spec}: batch() returns {len(value)} values for the {len(names)} "
                    f"parameters of forward ({', '.join(names)})",
                    hint=hint,
                )
            value = dict(zip(names, value, strict=False))
        if not isinstance(value, dict):
            raise CaptureError(f"{self.spec}: batch() returns {type(value).__name__}", hint=hint)
        for key, item in value.items():
            if not isinstance(item, Tensor):
                raise CaptureError(
                    f"{self.spec}: batch() returns {type(item).__name__} for {key}", hint=hint
                )
        return {str(key): tensor for key, tensor in value.items()}

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
    _check_overrides((functions[factory], batch), overrides, f"{path.name}:{factory}")
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


def _check_overrides(
    functions: tuple[Callable[..., Any], ...], overrides: Mapping[str, Json], spec: str
) -> None:
    known = [
        key for function in functions for key in inspect.signature(function).parameters
        if key not in ("batch_size", "seq_len")
    ]  # fmt: skip
    for key in overrides:
        if not any(_accepted(function, {key: None}) for function in functions):
            raise UsageError(
                f"{spec} has no parameter {key!r}",
                hint=near_matches(key, known, what="parameters"),
            )


def _accepted(function: Callable[..., Any], overrides: Mapping[str, Json]) -> dict[str, Any]:
    """The overrides that are parameters of ``function``."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return dict(overrides)
    return {key: value for key, value in overrides.items() if key in parameters}


def _cast_inputs(module: nn.Module, dtype: torch.dtype) -> None:
    """Have floating inputs of ``module`` cast to ``dtype`` before its forward."""

    def cast(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (
            tuple(_to(value, dtype) for value in args),
            {key: _to(value, dtype) for key, value in kwargs.items()},
        )

    if dtype != torch.float32:
        module.register_forward_pre_hook(cast, with_kwargs=True, prepend=True)


def _to(value: Any, dtype: torch.dtype) -> Any:
    is_single = isinstance(value, Tensor) and value.dtype == torch.float32
    return value.to(dtype) if is_single else value


def _load(path: Path, digest: str) -> ModuleType:
    name = f"autoplan_model_{digest[:16]}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded  # operators and rules are registered once
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
            f"{path}: {_where(error, path)}{type(error).__name__}: {_first_line(error)}",
            hint=_missing_package(error) or f"run python {path} to see the whole error",
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _call(function: Callable[..., Any], arguments: Mapping[str, Any], spec: str) -> Any:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        missing = re.search(r"missing a required (?:keyword-only )?argument: '(\w+)'", str(error))
        raise UsageError(
            f"{spec}: {function.__name__} can't be called: {error}",
            hint=f"give it: --set {missing[1]}=..., or a default in the file"
            if missing and not {"batch_size", "seq_len"} & {*arguments}
            else "it is called with batch_size, seq_len and the --set values it names",
        ) from error
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:
        file = Path(function.__code__.co_filename) if inspect.isfunction(function) else Path(spec)
        raise InputError(
            f"{spec}: {function.__name__} fails: {_where(error, file)}"
            f"{type(error).__name__}: {_first_line(error)}",
            hint=_missing_package(error) or "run it in Python by itself",
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _missing_package(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"install {package} where autoplan runs, or put its folder on PYTHONPATH"
    return ""


def _where(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return f"line {frames[-1].lineno}: " if frames else ""
