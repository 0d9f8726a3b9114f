"""Parameters and buffers: local shapes, initial values, shards of a whole tensor and back."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .axis import Axis
from .collectives import pad_dim

__all__ = [
    "Init",
    "ParameterSpec",
    "deferred_parameters",
    "empty_parameter",
    "initial_value",
    "initialise",
    "join_parameter",
    "load_buffer",
    "local_shape",
    "slice_parameter",
]


@dataclass(frozen=True, slots=True)
class Init:
    """Initial values: ``normal(mean a, std b)``, ``uniform(a, b)`` or ``constant(a)``."""

    kind: str
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """A parameter of the model and how the ``tp`` axis holds it.

    ``shape`` is whole; ``dim`` is the sharded dimension (None: replicated), made of
    ``blocks`` equal blocks. ``padded``: it does not divide, so each rank holds
    ceil(size / ranks) of it and the last one zeros at the end, whose gradient is zero too.
    ``partial_grad``: each rank has only an addend of the gradient, summed once a step.
    """

    shape: tuple[int, ...]
    dim: int | None = None
    blocks: int = 1
    padded: bool = False
    partial_grad: bool = False
    trainable: bool = True
    init: Init = Init("constant")


def local_shape(spec: ParameterSpec, axis: Axis) -> tuple[int, ...]:
    """Shape of what a rank of the axis holds."""
    if spec.dim is None:
        return spec.shape
    if not spec.padded and spec.shape[spec.dim] % (spec.blocks * axis.size):
        raise ValueError(
            f"dim {spec.dim} of shape {spec.shape} does not divide into "
            f"{spec.blocks} blocks x {axis.size} ranks"
        )
    shape = list(spec.shape)
    shape[spec.dim] = -(-shape[spec.dim] // axis.size)
    return tuple(shape)


def slice_parameter(full: Tensor, spec: ParameterSpec, axis: Axis) -> Tensor:
    """Part of a whole parameter that this rank holds, contiguous; padding is zero."""
    if tuple(full.shape) != spec.shape:
        raise ValueError(f"parameter of shape {tuple(full.shape)} where {spec.shape} is planned")
    shape = local_shape(spec, axis)
    if spec.dim is None:
        return full.contiguous()
    if spec.padded:
        full = pad_dim(full, spec.dim, shape[spec.dim] * axis.size)
    parts = torch.unflatten(full, spec.dim, (spec.blocks, axis.size, -1))
    return parts.select(spec.dim + 1, axis.rank).reshape(shape).contiguous()


def join_parameter(shards: Sequence[Tensor], spec: ParameterSpec) -> Tensor:
    """Whole parameter of the parts of all ranks of the axis, in rank order, without padding."""
    if spec.dim is None:
        return shards[0]
    if spec.padded:
        return torch.cat(list(shards), spec.dim).narrow(spec.dim, 0, spec.shape[spec.dim])
    blocks = [torch.unflatten(shard, spec.dim, (spec.blocks, -1)) for shard in shards]
    return torch.cat(blocks, dim=spec.dim + 1).reshape(spec.shape)


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:7], "little")


def initial_value(spec: ParameterSpec, *, name: str, seed: int, device: torch.device) -> Tensor:
    """Whole initial value of a parameter, float32 on ``device``.

    It is drawn from a seed of its own, so it depends on neither the mesh nor the order of
    the parameters, only on the kind of device.
    """
    init = spec.init
    full = torch.empty(spec.shape, dtype=torch.float32, device=device)
    generator = torch.Generator(device=device).manual_seed(_seed_of(name, seed))
    match init.kind:
        case "constant":
            return full.fill_(init.a)
        case "normal":
            return full.normal_(init.a, init.b, generator=generator)
        case "uniform":
            return full.uniform_(init.a, init.b, generator=generator)
        case _:
            raise ValueError(f"unknown initial values {init.kind!r} of {name}")


@torch.no_grad()
def initialise(parameter: Tensor, spec: ParameterSpec, axis: Axis, *, name: str, seed: int) -> None:
    """Fill a local parameter in place with its part of the initial value."""
    full = initial_value(spec, name=name, seed=seed, device=parameter.device)
    parameter.copy_(slice_parameter(full, spec, axis))


_deferred = False


@contextmanager
def deferred_parameters() -> Iterator[None]:
    """Within it `empty_parameter` allocates nothing: sharding comes first, memory after."""
    global _deferred
    previous = _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = previous


def empty_parameter(
    spec: ParameterSpec, axis: Axis, dtype: torch.dtype, device: torch.device
) -> nn.Parameter:
    """Local parameter without a value (on the meta device within `deferred_parameters`)."""
    where = torch.device("meta") if _deferred else device
    value = torch.empty(local_shape(spec, axis), dtype=dtype, device=where)
    return nn.Parameter(value, requires_grad=spec.trainable)


def load_buffer(record: Mapping[str, Any]) -> Tensor:
    """Tensor of a buffer's record in the plan file, on the CPU."""
    raw = bytearray(zlib.decompress(base64.b64decode(record["data"])))
    dtype: torch.dtype = getattr(torch, record["dtype"])
    shape = tuple(record["shape"])
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"buffer {record['fqn']} has {len(raw)} bytes, not {shape} of {record['dtype']}"
        )
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)
