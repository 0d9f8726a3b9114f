"""Batches: tokens of a file, or random ones, in an order that no mesh changes.

Sample ``i`` of step ``s`` has the index ``s * global_batch + i``. The index alone decides its
content; the data coordinate decides which rank reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .failure import InvalidFile
from .planfile import ProgramPlan

__all__ = ["BatchInput", "TokenFile", "batch", "batch_inputs", "token_input"]

_NEXT = ("target", "targets")
_SAME = ("labels",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """A tensor of the batch: shape of one sample, and for integers the bound of its values."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bound: int | None


def batch_inputs(plan: ProgramPlan) -> tuple[BatchInput, ...]:
    """Inputs of the model; integers are below the rows of each table they index.

    An integer input that indexes no table and is no class may be 0 or 1.
    """
    bounds = _bounds(plan.graph)
    inputs = []
    for tensor in plan.graph["inputs"]:
        dtype: torch.dtype = getattr(torch, tensor["dtype"])
        integer = not dtype.is_floating_point and dtype != torch.bool
        inputs.append(
            BatchInput(
                name=tensor["name"],
                shape=tuple(tensor["shape"][1:]),
                dtype=dtype,
                bound=bounds.get(tensor["name"], 2) if integer else None,
            )
        )
    return tuple(inputs)


def _names(arg: Any) -> list[str]:
    if isinstance(arg, list):
        return [name for item in arg for name in _names(item)]
    if isinstance(arg, dict) and "ref" in arg:
        return [arg["ref"]]
    return []


def _bounds(graph: Mapping[str, Any]) -> dict[str, int]:
    roots = {tensor["name"]: {tensor["name"]} for tensor in graph["inputs"]}
    shared = {tensor["name"]: tensor for tensor in graph["shared_tensors"]}
    bounds: dict[str, int] = {}
    _follow(graph["shared_ops"], shared, roots, bounds)
    for block in graph["classes"]:
        tensors = {tensor["name"]: tensor for tensor in block["tensors"]}
        _follow(block["ops"], tensors, dict(roots), bounds)
    return bounds


def _follow(
    ops: list[dict[str, Any]],
    tensors: Mapping[str, Any],
    roots: dict[str, set[str]],
    bounds: dict[str, int],
) -> None:
    """Follow integers from the inputs to the tables and class counts that bound them."""
    for op in ops:
        operands = [name for arg in op["args"] for name in _names(arg)]
        kind = op["target"].split(".")[1]
        limit = None
        if kind == "embedding":
            limit = tensors[operands[0]]["shape"][0]
        elif kind in ("cross_entropy_loss", "nll_loss_forward", "nll_loss"):
            shape = tensors[operands[0]]["shape"]
            limit = shape[1] if len(shape) > 1 else shape[0]
        if limit is not None:
            for root in roots.get(operands[1], ()):
                bounds[root] = min(limit, bounds.get(root, limit))
            continue
        reached = {root for name in operands for root in roots.get(name, ())}
        for output in op["outputs"]:
            roots[output] = reached if _is_integer(tensors[output]) else set()


def _is_integer(tensor: Mapping[str, Any]) -> bool:
    return str(tensor["dtype"]).startswith(("int", "uint"))


class TokenFile:
    """Tokens of a raw little-endian file of uint16 (``.u16``, ``.bin``) or uint32 (``.u32``)."""

    def __init__(self, path: Path, *, window: int, bound: int) -> None:
        width = 4 if path.suffix == ".u32" else 2
        # Read as signed and masked later: torch computes little on unsigned types.
        dtype = torch.int32 if width == 4 else torch.int16
        try:
            count = path.stat().st_size // width
            self._tokens = torch.from_file(str(path), shared=False, size=count, dtype=dtype)
        except (OSError, RuntimeError) as error:
            raise InvalidFile(f"cannot read tokens from {path}: {error}") from error
        self._mask = 2 ** (8 * width) - 1
        self._order: tuple[tuple[int, int], Tensor] | None = None
        self.window, self._bound, self._path = window, bound, path
        self.samples = (len(self._tokens) - 1) // window
        if self.samples < 1:
            raise InvalidFile(f"{path} has {len(self._tokens)} tokens, a sample needs {window + 1}")

    def sample(self, index: int, *, seed: int) -> Tensor:
        """``window`` + 1 tokens of a sample; each epoch has an order of its own."""
        epoch, position = divmod(index, self.samples)
        if self._order is None or self._order[0] != (seed, epoch):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            self._order = (seed, epoch), torch.randperm(self.samples, generator=generator)
        first = int(self._order[1][position]) * self.window
        stored = self._tokens[first : first + self.window + 1]
        tokens: Tensor = stored.long() & self._mask
        if int(tokens.max()) >= self._bound:
            raise InvalidFile(
                f"{self._path} has token {int(tokens.max())}, the model knows {self._bound}",
                hint="a file of 4-byte tokens must end in .u32",
            )
        return tokens


def batch(
    inputs: tuple[BatchInput, ...],
    plan: ProgramPlan,
    *,
    step: int,
    dp_rank: int,
    seed: int,
    tokens: TokenFile | None = None,
) -> dict[str, Tensor]:
    """Share of a step's global batch that a data rank computes, on the CPU."""
    share = plan.global_batch // plan.dp
    first = step * plan.global_batch + dp_rank * share
    samples = [_sample(inputs, index, seed, tokens) for index in range(first, first + share)]
    return {item.name: torch.stack([s[item.name] for s in samples]) for item in inputs}


def _sample(
    inputs: tuple[BatchInput, ...], index: int, seed: int, tokens: TokenFile | None
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)
    ids = token_input(inputs)
    window: Tensor | None = None
    if ids is not None and ids.bound is not None:
        length = ids.shape[0]
        if tokens is None:
            window = torch.randint(ids.bound, (length + 1,), generator=generator)
        else:
            window = tokens.sample(index, seed=seed)
    values: dict[str, Tensor] = {}
    for item in inputs:
        follows = ids is not None and window is not None and item.shape == ids.shape
        if window is not None and (item is ids or (follows and item.name in _SAME)):
            values[item.name] = window[:-1].to(item.dtype)
        elif window is not None and follows and item.name in _NEXT:
            values[item.name] = window[1:].to(item.dtype)
        else:
            values[item.name] = _random(item, generator)
    return values


def token_input(inputs: tuple[BatchInput, ...]) -> BatchInput | None:
    """The input that takes tokens: one-dimensional integers of the largest range, no labels."""
    best: BatchInput | None = None
    for item in inputs:
        if item.bound is None or len(item.shape) != 1 or _is_given(item):
            continue
        if best is None or item.bound > (best.bound or 0):
            best = item
    return best


def _is_given(item: BatchInput) -> bool:
    return item.name in (*_SAME, *_NEXT) or item.name.endswith("mask")


def _random(item: BatchInput, generator: torch.Generator) -> Tensor:
    if item.dtype == torch.bool or item.name.endswith("mask"):
        return torch.ones(item.shape, dtype=item.dtype)
    if item.bound is not None:
        return torch.randint(item.bound, item.shape, generator=generator).to(item.dtype)
    return torch.randn(item.shape, generator=generator).to(item.dtype)
