"""Where a model comes from: `ModelSource`, built as often as needed, without weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from autoplan.capture.build import BuiltModule
from autoplan.errors import UsageError
from autoplan.ir.fields import Json

__all__ = ["ModelSource", "disable_dropout", "torch_dtype"]

Form = Literal["builtin", "hf", "file"]


class ModelSource(ABC):
    """A model by its recipe. ``config``, ``overrides`` and ``file_digest`` identify it."""

    name: str
    spec: str
    form: Form
    overrides: Mapping[str, Json]
    config: Mapping[str, Json]
    file_digest: str

    @abstractmethod
    def build(
        self, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
    ) -> nn.Module:
        """Module in training mode whose ``forward(**batch)`` is the scalar loss.

        Parameter names are those of the user's own module. Weights are random.
        """

    @abstractmethod
    def build_for_trace(self, *, dtype: str | torch.dtype) -> BuiltModule:
        """The same module on the meta device, in the form that is exported."""

    def tracing(self) -> AbstractContextManager[None]:
        """Context in which the module of `build_for_trace` is exported."""
        return nullcontext()

    @abstractmethod
    def batch(
        self, batch_size: int, seq_len: int, *, seed: int = 0, device: str | torch.device = "cpu"
    ) -> dict[str, Tensor]:
        """Random inputs by name, in the order of ``forward``; dimension 0 is the batch."""

    @abstractmethod
    def reduced(self, *, layers: int, tp: int) -> ModelSource | None:
        """The same architecture, narrow and ``layers`` deep; None if no such recipe exists.

        Heads, key-value heads and vocabulary stay divisible by ``tp``.
        """

    def has_sequences(self) -> bool:
        """Whether inputs depend on the number of tokens a sample."""
        shapes = [
            [tensor.shape for tensor in self.batch(2, length, device="meta").values()]
            for length in (8, 16)
        ]
        return shapes[0] != shapes[1]

    def longest_sequence(self) -> int | None:
        """Most tokens of a sample, None if the model names no limit."""
        for key in ("max_position_embeddings", "n_positions", "block_size"):
            longest = self.overrides.get(key, self.config.get(key))
            if isinstance(longest, int) and longest > 0:
                return longest
        return None

    def __str__(self) -> str:
        settings = "".join(f" {key}={value}" for key, value in self.overrides.items())
        return f"{self.spec}{settings}"


def torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype of a name such as ``"bfloat16"``."""
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"unknown dtype {dtype!r}", hint="use bfloat16, float16 or float32")
    return found


def disable_dropout(module: nn.Module, *, paths: bool = True) -> nn.Module:
    """The same module with every dropout probability set to 0.

    Without ``paths`` all but the rates at which whole samples skip a layer.
    """
    owners: list[object] = list(module.modules())
    configs = [getattr(owner, "config", None) for owner in owners]
    for owner in owners + [config for config in configs if hasattr(config, "__dict__")]:
        is_dropout = isinstance(owner, nn.modules.dropout._DropoutNd)
        for key, value in list(vars(owner).items()):
            if not paths and key.startswith(("drop_path", "drop_prob")):
                continue
            if isinstance(value, float) and ("drop" in key or (is_dropout and key == "p")):
                setattr(owner, key, 0.0)
    return module
