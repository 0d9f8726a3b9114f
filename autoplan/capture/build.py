"""Building a module without memory for its weights, keeping what a program needs.

Weights live on the meta device. Small tensors made by value (``arange``, ``zeros``,
``full``) are real, so that buffers keep their values. The calls that initialise
parameters are watched, so that a program can initialise its shards the same way.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.capture.experts import with_adapters
from autoplan.errors import CaptureError
from autoplan.ir.graph import Buffer, Init

__all__ = ["BuiltModule", "build_on_meta", "encode", "module_buffers", "to_dtype"]

_RANDOM = {"empty", "empty_strided", "rand", "randn", "randint", "randperm", "normal"}
_MAX_REAL_RANDOM = 2**16
_MAX_REAL_VALUE = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModule:
    """A module on the meta device, its parameters' initialisation and its buffers."""

    module: nn.Module
    inits: dict[str, Init]
    buffers: dict[str, Buffer]
    notes: tuple[str, ...]


def build_on_meta(make: Callable[[], nn.Module], *, dtype: torch.dtype) -> BuiltModule:
    """Module made by ``make`` in training mode, with parameters in ``dtype``."""
    watch = _WatchInit()
    with torch.random.fork_rng(devices=[]), watch, _PlaceBySize():
        module = with_adapters(make())
    module.train()
    inits, notes = _parameter_inits(module, watch)
    _parameters_to_meta(module)
    to_dtype(module, dtype)
    buffers = module_buffers(module)
    _buffers_to_meta(module)
    return BuiltModule(module=module, inits=inits, buffers=buffers, notes=notes)


def to_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast float32 parameters in place, and the statistics of batch norms with them.

    Other buffers keep the dtype that the model gave them, as under FSDP2's mixed precision.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dtype == torch.float32:
                parameter.data = parameter.data.to(dtype)
        for child in module.modules():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                for key, buffer in child._buffers.items():
                    if buffer is not None and buffer.is_floating_point():
                        child._buffers[key] = buffer.to(dtype)


class _PlaceBySize(TorchFunctionMode):
    """Factory calls give meta tensors when large or without value, else real ones."""

    def __init__(self) -> None:
        super().__init__()
        self._constructors = _device_constructors()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._constructors:
            return func(*args, **kwargs)
        if func.__name__ in {"tensor", "as_tensor", "scalar_tensor"}:
            return func(*args, **kwargs | {"device": "cpu"})
        trial = func(*args, **kwargs | {"device": "meta"})
        limit = _MAX_REAL_RANDOM if func.__name__ in _RANDOM else _MAX_REAL_VALUE
        if trial.numel() > limit:
            return trial
        return func(*args, **kwargs | {"device": "cpu"})


@dataclass
class _Record:
    init: Init | None = None
    # Keeps the storage alive, so that its address is not reused for another.
    storage: Any = None


class _WatchInit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the last in-place initialisation of each whole storage."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._records: dict[int, _Record] = {}

    def init_of(self, parameter: Tensor) -> Init | None:
        """Initialisation seen for the parameter, if any."""
        record = self._records.get(parameter.untyped_storage()._cdata)
        return None if record is None else record.init

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in {"randn", "normal", "rand", "zeros", "ones", "full"}:
            if isinstance(out, Tensor) and out.is_floating_point():
                self._set(out, _factory_init(name, args))
        elif name in {"clone", "_to_copy"} and isinstance(out, Tensor):
            self._set(out, self.init_of(args[0]))
        elif name in {"mul", "add"} and isinstance(args[0], Tensor):
            self._set(out, _next_init(f"{name}_", args[1:], self.init_of(args[0])))
        elif name.endswith("_") and args and isinstance(args[0], Tensor):
            tensor = args[0]
            storage = tensor.untyped_storage()
            if tensor.numel() * tensor.element_size() == storage.nbytes():
                before = self.init_of(tensor)
                self._set(tensor, _next_init(name, args[1:], before))
        return out

    def _set(self, tensor: Tensor, init: Init | None) -> None:
        storage = tensor.untyped_storage()
        self._records[storage._cdata] = _Record(init, storage)


def _factory_init(name: str, args: tuple[Any, ...]) -> Init | None:
    match name:
        case "randn":
            return Init(kind="normal", a=0.0, b=1.0)
        case "rand":
            return Init(kind="uniform", a=0.0, b=1.0)
        case "zeros":
            return Init(kind="constant", a=0.0)
        case "ones":
            return Init(kind="constant", a=1.0)
        case "full" if isinstance(args[1], int | float):
            return Init(kind="constant", a=float(args[1]))
    return None


def _next_init(name: str, args: tuple[Any, ...], before: Init | None) -> Init | None:
    """Initialisation after one in-place call; scaling and shifting act on the one before."""
    numbers = [float(arg) for arg in args if isinstance(arg, int | float)]
    match name:
        case "normal_":
            mean, std = [*numbers, *(0.0, 1.0)[len(numbers) :]]
            return Init(kind="normal", a=mean, b=std)
        case "uniform_":
            low, high = [*numbers, *(0.0, 1.0)[len(numbers) :]]
            return Init(kind="uniform", a=low, b=high)
        case "zero_":
            return Init(kind="constant", a=0.0)
        case "fill_" if numbers:
            return Init(kind="constant", a=numbers[0])
        case "erfinv_" if before is not None and before.kind == "uniform":
            # torch's trunc_normal_: erfinv(uniform) * std * sqrt(2) + mean, then clamped.
            return Init(kind="normal", a=0.0, b=math.sqrt(0.5))
        case "mul_" if before is not None and numbers:
            return Init(kind=before.kind, a=before.a * numbers[0], b=before.b * numbers[0])
        case "add_" if before is not None and numbers:
            shifted = before.b if before.kind == "normal" else before.b + numbers[0]
            return Init(kind=before.kind, a=before.a + numbers[0], b=shifted)
        case "clamp_" | "copy_" | "detach_" | "requires_grad_" | "squeeze_" | "unsqueeze_":
            return before if name != "copy_" else None
    return None


def _parameter_inits(
    module: nn.Module, watch: _WatchInit
) -> tuple[dict[str, Init], tuple[str, ...]]:
    inits: dict[str, Init] = {}
    guessed = []
    for fqn, parameter in module.named_parameters():
        seen = watch.init_of(parameter) or _constant(parameter)
        if seen is None:
            seen = _guess_init(fqn, parameter)
            guessed.append(fqn)
        inits[fqn] = seen
    if not guessed:
        return inits, ()
    named = ", ".join(guessed[:3]) + (" ..." if len(guessed) > 3 else "")
    return inits, (f"initialisation of {len(guessed)} parameters guessed: {named}",)


def _constant(parameter: Tensor) -> Init | None:
    """Initialisation of a parameter made from one number."""
    if parameter.is_meta or not parameter.numel():
        return None
    first = parameter.detach().flatten()[0]
    return Init(kind="constant", a=float(first)) if bool((parameter == first).all()) else None


def _guess_init(fqn: str, parameter: Tensor) -> Init:
    if not parameter.is_meta and parameter.numel() and parameter.is_floating_point():
        values = parameter.detach().double()
        spread = float(values.std(correction=0))
        return Init(kind="normal", a=float(values.mean()), b=spread)
    if parameter.dim() == 1:
        return Init(kind="constant", a=0.0 if fqn.rpartition(".")[2] == "bias" else 1.0)
    return Init(kind="normal", a=0.0, b=0.02)


def module_buffers(module: nn.Module) -> dict[str, Buffer]:
    """Buffers with their values, by FQN."""
    persistent = set(module.state_dict(keep_vars=True))
    return {
        fqn: encode(fqn, buffer, persistent=fqn in persistent)
        for fqn, buffer in module.named_buffers()
    }


def encode(fqn: str, tensor: Tensor, *, persistent: bool) -> Buffer:
    """Buffer record of a real tensor."""
    if tensor.is_meta:
        raise CaptureError(
            f"buffer {fqn} of shape {tuple(tensor.shape)} is too large to keep its value",
            hint="compute it in forward, or make it smaller",
        )
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Buffer(
        fqn=fqn,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        persistent=persistent,
        data=base64.b64encode(zlib.compress(raw, 9)).decode("ascii"),
    )


def _parameters_to_meta(module: nn.Module) -> None:
    """Replace real parameters by meta ones in place, keeping ties."""
    moved: dict[int, nn.Parameter] = {}
    for child in module.modules():
        for key, parameter in child._parameters.items():
            if parameter is None or parameter.is_meta:
                continue
            if id(parameter) not in moved:
                fresh = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                moved[id(parameter)] = fresh
            child._parameters[key] = moved[id(parameter)]


def _buffers_to_meta(module: nn.Module) -> None:
    for child in module.modules():
        for key, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[key] = buffer.to("meta")
