"""What recompute makes the host do for a block and its operators, beyond running them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.profiles.measure.device import Device, Passes
from autoplan.profiles.measure.steady import Measured, Sample, measure_steadily, sample_of
from autoplan.runtime import checkpoint, checkpoint_selectively

__all__ = ["measure_recompute"]

_ROUNDS = 1, 10  # of a short block and of a long one
_EACH = 3  # operators a round
_REPEATS = 15
# Elements of a tensor: the operators leave nothing in the caches that the host would find.
_NUMEL = {"cpu": 2**17, "cuda": 2**22}

aten = torch.ops.aten

_Task = tuple[str, int, bool]  # level, rounds, whether the backward is timed


class _Chain(nn.Module):
    """An operator that saves its inputs, one that saves nothing and a view, in turn."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._rounds = rounds

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self._rounds):
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


def measure_recompute(
    device: Device,
    together: Callable[..., list[float]],
    reference: Callable[[], float],
    say: Callable[[str], None],
) -> list[dict[str, object]]:
    """Records of `RecomputeTiming`, by level."""
    say("recompute")
    passes = Passes(device)
    numel = _NUMEL[device.kind]

    def pass_time(level: str, rounds: int, backward: bool) -> float:
        block = _Chain(rounds)
        x = torch.zeros(numel // 256, 256, device=device.place, requires_grad=True)
        first, second = passes(lambda: _run(level, block, x), lambda y: y.backward(y.detach()))
        return second if backward else first

    def measure(task: _Task) -> Sample:
        sample = sample_of([pass_time(*task) for _ in range(_REPEATS)][2:])
        seconds, spread = together(sample.seconds, sample.spread)
        return Sample(seconds=seconds, spread=spread, repeats=sample.repeats)

    tasks = [
        (level, rounds, backward)
        for level in ("none", "full", "selective")
        for rounds in _ROUNDS
        for backward in (False, True)
    ]
    measured = {one.what: one for one in measure_steadily(tasks, measure, reference, say=say)}
    return [_record(level, measured) for level in ("full", "selective")]


def _record(level: str, measured: dict[_Task, Measured[_Task]]) -> dict[str, object]:
    def added(rounds: int, backward: bool) -> float:
        seconds = [measured[of, rounds, backward].sample.seconds for of in (level, "none")]
        again = measured["none", rounds, False].sample.seconds if backward else 0.0
        return seconds[0] - seconds[1] - again

    short, long = _ROUNDS
    found: dict[str, object] = {"level": level}
    for name, backward in (("forward", False), ("backward", True)):
        operator = max(0.0, added(long, backward) - added(short, backward)) / (
            _EACH * (long - short)
        )
        block = max(0.0, added(short, backward) - _EACH * short * operator)
        found[name] = f"{operator:.9g} s"
        found[f"block_{name}"] = f"{block:.9g} s"
    both = [measured[level, rounds, back] for rounds in _ROUNDS for back in (False, True)]
    return {
        **found,
        "spread": round(max(one.sample.spread for one in both), 4),
        "repeats": both[0].sample.repeats,
        "pace": round(max(1.0, *(one.pace for one in both)), 4),
    }
