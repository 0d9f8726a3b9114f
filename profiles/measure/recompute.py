"""What recompute makes the host do for each operator of a block, beyond running it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.profiles.measure.steady import Measured, Sample, measure_steadily, sample_of
from autoplan.runtime import checkpoint, checkpoint_selectively

__all__ = ["measure_recompute"]

_ROUNDS = 10
_OPERATORS = 3 * _ROUNDS
_REPEATS = 15
_NUMEL = 2**17  # of a tensor: the operators leave nothing in the caches that the host would find

aten = torch.ops.aten


class _Chain(nn.Module):
    """An operator that saves its inputs, one that saves nothing and a view, in turn."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(_ROUNDS):
            x = aten.mul.Tensor(x, x)
            x = aten.add.Tensor(x, 1.0)
            x = aten.view.default(x, list(reversed(x.shape)))
        return x


def _run(level: str, block: nn.Module, x: Tensor) -> Any:
    match level:
        case "full":
            return checkpoint(block, x)
        case "selective":
            return checkpoint_selectively(block, x)
    return block(x)


def _seconds(level: str, backward: bool) -> float:
    block, x = _Chain(), torch.zeros(_NUMEL // 256, 256, requires_grad=True)
    started = time.perf_counter()
    y = _run(level, block, x)
    between = time.perf_counter()
    y.backward(y.detach())
    return time.perf_counter() - between if backward else between - started


def measure_recompute(
    together: Callable[..., list[float]],
    reference: Callable[[], float],
    say: Callable[[str], None],
) -> list[dict[str, object]]:
    """Records of `RecomputeTiming`, by level."""
    say("recompute")

    def measure(task: tuple[str, bool]) -> Sample:
        sample = sample_of([_seconds(*task) for _ in range(_REPEATS)][2:])
        seconds, spread = together(sample.seconds, sample.spread)
        return Sample(seconds=seconds, spread=spread, repeats=sample.repeats)

    tasks = [(level, back) for level in ("none", "full", "selective") for back in (False, True)]
    measured = {one.what: one for one in measure_steadily(tasks, measure, reference, say=say)}
    return [_record(level, measured) for level in ("full", "selective")]


def _record(level: str, measured: dict[tuple[str, bool], Measured[Any]]) -> dict[str, object]:
    seconds = {task: one.sample.seconds for task, one in measured.items()}
    once = seconds["none", False]
    forward = max(0.0, seconds[level, False] - once) / _OPERATORS
    backward = max(0.0, seconds[level, True] - seconds["none", True] - once) / _OPERATORS
    both = [measured[level, back] for back in (False, True)]
    return {
        "level": level,
        "forward": f"{forward:.9g} s",
        "backward": f"{backward:.9g} s",
        "spread": round(max(one.sample.spread for one in both), 4),
        "repeats": both[0].sample.repeats,
        "pace": round(max(1.0, *(one.pace for one in both)), 4),
    }
