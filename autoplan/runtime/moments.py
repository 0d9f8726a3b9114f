"""AdamW with moments of 32, 16 or 8 bits, on parameters of any floating dtype.

Moments of 8 bits are quantized by blocks of `BLOCK` elements to a code with denser values near
zero, scaled by the block's largest magnitude, as T. Dettmers et al. do it (8-bit Optimizers via
Block-wise Quantization, arXiv 2110.02861): signed for the mean of gradients, unsigned for the
mean of their squares. A square that is not zero never becomes zero, since the update divides by
its root.

Parameters of fewer than 32 bits that have no float32 master are rounded stochastically, so that
updates below half a unit in the last place aren't lost. The random bits are a hash of the value
and the step: ranks that hold copies of a parameter round them alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

__all__ = ["BLOCK", "CHUNK", "BlockwiseCode", "ChunkedAdamW", "round_stochastically"]

BLOCK = 256
CHUNK = 2**22

_DECADES = 7


def _code(*, signed: bool) -> Tensor:
    """The 256 values of the code, rising: each decade has twice the values of the one below."""
    magnitudes = []
    for decade in range(_DECADES):
        count = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1.0, count + 1, dtype=torch.float64)
        magnitudes.append((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - _DECADES + 1))
    positive = torch.cat(magnitudes)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    parts = [-positive, positive, ends] if signed else [positive, ends]
    return torch.cat(parts).sort().values.float()


class BlockwiseCode:
    """A tensor of ``numel`` elements in 8 bits each and a scale a block, zero at first."""

    def __init__(self, numel: int, *, signed: bool, device: torch.device) -> None:
        self._values = _code(signed=signed).to(device)
        # The nearest code of every bfloat16, by its bits: a search takes 60 times as long.
        every = torch.arange(2**16, device=device).to(torch.uint16).view(torch.bfloat16)
        bounds = (self._values[1:] + self._values[:-1]) / 2
        self._nearest = torch.bucketize(every.float(), bounds).to(torch.uint8)
        self._signed = signed
        zero = int((self._values == 0).nonzero())
        self.codes = torch.full((numel,), zero, dtype=torch.uint8, device=device)
        self.scales = torch.zeros(-(-numel // BLOCK), dtype=torch.float32, device=device)

    def tensors(self) -> list[Tensor]:
        """What is kept from step to step."""
        return [self.codes, self.scales]

    def load(self, first: int, last: int) -> Tensor:
        """Float32 values of a range that begins at a block."""
        values = self._values.index_select(0, self.codes[first:last].int())
        return values.mul_(self._spread(first, last))

    def store(self, first: int, last: int, values: Tensor) -> None:
        """Quantize float32 values into a range that begins at a block."""
        numel = last - first
        blocks = -(-numel // BLOCK)
        padded = torch.nn.functional.pad(values.abs(), (0, blocks * BLOCK - numel))
        start = first // BLOCK
        self.scales[start : start + blocks] = padded.view(blocks, BLOCK).amax(1)
        relative = values / self._spread(first, last).clamp_(min=torch.finfo(torch.float32).tiny)
        bits = relative.bfloat16().view(torch.int16).int() & 0xFFFF
        codes = self._nearest.index_select(0, bits)
        if not self._signed:
            codes.masked_fill_((codes == 0) & (values > 0), 1)
        self.codes[first:last] = codes

    def _spread(self, first: int, last: int) -> Tensor:
        blocks = -(-(last - first) // BLOCK)
        start = first // BLOCK
        scales = self.scales[start : start + blocks]
        return scales.repeat_interleave(BLOCK)[: last - first]


class _Plain:
    """A tensor of ``numel`` elements in a floating dtype, zero at first."""

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros(numel, dtype=dtype, device=device)

    def tensors(self) -> list[Tensor]:
        return [self.values]

    def load(self, first: int, last: int) -> Tensor:
        return self.values[first:last].to(torch.float32, copy=True)

    def store(self, first: int, last: int, values: Tensor) -> None:
        self.values[first:last] = values


def round_stochastically(values: Tensor, dtype: torch.dtype, step: int) -> Tensor:
    """Float32 values in ``dtype``: bfloat16 up or down by chance, wider types as they are.

    The chance of the upper neighbour is the distance from the lower one in units of their gap.
    """
    if dtype != torch.bfloat16:
        return values.to(dtype)
    bits = values.contiguous().view(torch.int32)
    noise = bits ^ ((step * 0x9E3779B1) & 0x7FFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x2C1B3C6D), (16, 0x297A2D39)):
        noise = (noise ^ ((noise >> shift) & (2 ** (32 - shift) - 1))) * factor
    noise = (noise >> 8) & 0xFFFF
    rounded = ((bits + noise) & ~0xFFFF).view(torch.float32).to(dtype)
    return torch.where(values.isfinite(), rounded, values.to(dtype))


class ChunkedAdamW(torch.optim.Optimizer):
    """AdamW whose moments of all parameters are one tensor each, updated chunk by chunk.

    A parameter without a gradient counts as one whose gradient is zero.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        rate: float,
        bits: int,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(groups, {"lr": rate, "weight_decay": 0.0})
        self._betas, self._epsilon = betas, epsilon
        self._steps = 0
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._starts = [0, *itertools.accumulate(_local(p).numel() for p in parameters)]
        numel = self._starts[-1]
        device = _local(parameters[0]).device if parameters else torch.device("cpu")
        self._mean: BlockwiseCode | _Plain
        self._square: BlockwiseCode | _Plain
        if bits == 8:
            self._mean = BlockwiseCode(numel, signed=True, device=device)
            self._square = BlockwiseCode(numel, signed=False, device=device)
        else:
            dtype = {16: torch.bfloat16, 32: torch.float32}[bits]
            self._mean = _Plain(numel, dtype, device)
            self._square = _Plain(numel, dtype, device)

    def state_tensors(self) -> list[Tensor]:
        """The moments, as they are kept."""
        return [*self._mean.tensors(), *self._square.tensors()]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters from their gradients."""
        assert closure is None
        self._steps += 1
        first_beta, second_beta = self._betas
        mean_bias = 1 - first_beta**self._steps
        square_bias = math.sqrt(1 - second_beta**self._steps)
        for first in range(0, self._starts[-1], CHUNK):
            last = min(first + CHUNK, self._starts[-1])
            pieces = list(self._pieces(first, last))
            gradient = torch.cat([grad for _, grad, _ in pieces])
            mean, square = self._mean.load(first, last), self._square.load(first, last)
            mean.lerp_(gradient, 1 - first_beta)
            square.mul_(second_beta).addcmul_(gradient, gradient, value=1 - second_beta)
            self._mean.store(first, last, mean)
            self._square.store(first, last, square)
            change = mean.div_(square.sqrt_().div_(square_bias).add_(self._epsilon))
            change.div_(mean_bias)
            sizes = [grad.numel() for _, grad, _ in pieces]
            for (values, _, group), part in zip(pieces, torch.split(change, sizes), strict=True):
                rate = group["lr"]
                kept = 1 - rate * group["weight_decay"]
                if values.dtype.itemsize >= 4:
                    values.mul_(kept).sub_(part, alpha=rate)
                else:
                    new = values.float().mul_(kept).sub_(part, alpha=rate)
                    values.copy_(round_stochastically(new, values.dtype, self._steps))

    def _pieces(self, first: int, last: int) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Values, float32 gradient and group of each parameter's part of a range."""
        held = [(p, group) for group in self.param_groups for p in group["params"]]
        for start, (parameter, group) in zip(self._starts, held, strict=False):
            values = _local(parameter).view(-1)
            low, high = max(first - start, 0), min(last - start, values.numel())
            if low >= high:
                continue
            part = values[low:high]
            if parameter.grad is None:
                yield part, torch.zeros_like(part, dtype=torch.float32), group
            else:
                grad = _local(parameter.grad).reshape(-1)[low:high]
                yield part, grad.float(), group


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
