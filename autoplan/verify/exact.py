"""A model run in float64 throughout, whatever dtypes its own code asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.verify.precision import WIDER

__all__ = ["in_float64"]

_WIDER: dict[Any, torch.dtype] = {
    getattr(torch, narrow): getattr(torch, wide) for narrow, wide in WIDER["float64"].items()
}


@contextmanager
def in_float64() -> Iterator[None]:
    """Within it a cast to a narrower floating dtype, or a new tensor of one, is float64.

    Parameters, buffers and inputs must be float64 already. What has no float64 kernel
    (grouped products) is computed in another way.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Numbers(), _Casts():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)


class _Numbers(TorchFunctionMode):
    """Numbers that forward makes tensors of: one alone is exact, as the program has it.

    Several are constants of the program, in the dtype that they have in the model.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and args and type(args[0]) in (int, float):
            usual = torch.float64 if type(args[0]) is float else torch.int64
            dtype = kwargs.pop("dtype", None) or usual
            return torch.full((), args[0], dtype=_WIDER.get(dtype, dtype), **kwargs)
        if func in (torch.tensor, torch.as_tensor) and args and isinstance(args[0], list | tuple):
            made = func(*args, **kwargs)
            if kwargs.get("dtype") in (None, torch.float32) and made.is_floating_point():
                rounded = made.detach().numpy().astype("float32").astype("float64")
                return torch.from_numpy(rounded)
            return made
        return func(*args, **kwargs)


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(_wide(arg) for arg in args)
        kwargs = {key: _wide(value) for key, value in (kwargs or {}).items()}
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return _grouped_product(*args, **kwargs)
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _grouped_product(
    x: torch.Tensor,
    y: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``_grouped_mm``: groups are runs of rows of ``x``, or of what is summed over."""
    if offs is None:
        return torch.bmm(x, y)
    ends = offs.tolist()
    runs = list(zip([0, *ends[:-1]], ends, strict=True))
    if y.dim() == 3 and x.dim() == 2:
        out = x.new_zeros(x.shape[0], y.shape[2])
        for group, (start, end) in enumerate(runs):
            out[start:end] = x[start:end] @ y[group]
        return out
    if x.dim() == 3:
        out = x.new_zeros(x.shape[1], y.shape[1])
        for group, (start, end) in enumerate(runs):
            out[:, start:end] = x[group] @ y[:, start:end]
        return out
    return torch.stack([x[:, start:end] @ y[start:end] for start, end in runs])
