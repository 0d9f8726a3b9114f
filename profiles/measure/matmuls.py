"""A square matmul of a type, ready to run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoplan.profiles.measure.cold import Cold

__all__ = ["matmul_of"]


def matmul_of(n: int, dtype: torch.dtype, place: torch.device) -> Cold:
    """(n x n) by (n x n), as a linear layer runs it."""

    def operands() -> tuple[Tensor, ...]:
        return tuple(torch.randn(n, n, device=place).to(dtype) for _ in range(2))

    if dtype is not torch.float8_e4m3fn:
        return Cold(operands, torch.nn.functional.linear)
    # torch has no other fp8 matmul; its scales are of the whole tensor.
    one = torch.ones((), device=place)
    scaled: Any = torch._scaled_mm
    return Cold(
        operands,
        lambda x, w: scaled(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
    )
