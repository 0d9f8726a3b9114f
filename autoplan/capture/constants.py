"""Tensors that a forward makes from Python numbers, which keep no value on the meta device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autoplan.errors import CaptureError

__all__ = ["WatchConstants"]

_PREFIX = "lifted_tensor_"


class WatchConstants(TorchFunctionMode):
    """Within this context ``torch.tensor`` makes meta tensors and its data are noted."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, torch.dtype]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        made_by_value = func is torch.tensor or func is torch.as_tensor
        if not made_by_value or not args or not _is_plain(args[0]):
            return func(*args, **kwargs)
        if not isinstance(args[0], list | tuple) and not kwargs.keys() - {"dtype", "device"}:
            # An operator of the graph keeps its number.
            return torch.full((), args[0], dtype=kwargs.get("dtype"), device="meta")
        result = func(*args, **kwargs | {"device": "meta"})
        self._calls.append((copy.deepcopy(args[0]), result.dtype))
        return result

    def values(self, constants: Mapping[str, Any], *, name: str) -> dict[str, Tensor]:
        """Real value of each lifted constant of an exported program.

        The program numbers them in the order in which forward made them.
        """
        lifted = [key for key in constants if _name(key).startswith(_PREFIX)]
        lifted.sort(key=lambda key: int(_name(key).removeprefix(_PREFIX)))
        made = [torch.tensor(data, dtype=dtype) for data, dtype in self._calls]
        seen = [constants[key] for key in lifted]
        if [(t.shape, t.dtype) for t in made] != [(t.shape, t.dtype) for t in seen]:
            raise CaptureError(
                f"{name}: forward makes {len(made)} tensors from Python numbers, of which "
                f"{len(seen)} can be followed",
                hint="make them in __init__ and register them as buffers",
            )
        return dict(zip(lifted, made, strict=True))


def _name(key: str) -> str:
    """Last part: constants made in a child module are named under its path."""
    return key.rpartition(".")[2]


def _is_plain(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return all(map(_is_plain, data))
    return isinstance(data, bool | int | float)
