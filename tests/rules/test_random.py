"""Random operators on ranks: equal numbers where the value is whole, others where it is sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autoplan import runtime
from autoplan.ir.graph import Const
from autoplan.ir.placement import Replicate, Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import localize, registered_targets, strategies

from .engine import Prepared, Sample, T, execute, place, prepare

_CPU = {"device": Const("device", "")}
_ROWS = T(shape=(64, 32, 4), low=0.2, high=0.8, grad=False)


def _call(target: str, *args: Any, **kw: Any) -> Sample:
    return Sample(target=f"aten.{target}", args=args, kwargs=kw)


# Each with the mean and the standard deviation of its numbers.
CASES: dict[str, tuple[Sample, float | None, float | None]] = {
    "aten.dropout.default": (_call("dropout.default", _ROWS, 0.5, True), None, None),
    "aten.alpha_dropout.default": (_call("alpha_dropout.default", _ROWS, 0.5, True), None, None),
    "aten.feature_dropout.default": (
        _call("feature_dropout.default", _ROWS, 0.5, True), None, None,
    ),
    "aten.feature_alpha_dropout.default": (
        _call("feature_alpha_dropout.default", _ROWS, 0.5, True), None, None,
    ),
    "aten.rand_like": (_call("rand_like.default", _ROWS), 0.5, 0.2887),
    "aten.randn_like": (_call("randn_like.default", _ROWS), 0.0, 1.0),
    "aten.randint_like": (_call("randint_like.low_dtype", _ROWS, 3, 5), 3.5, 0.5),
    "aten.bernoulli": (_call("bernoulli.default", _ROWS), 0.5, 0.5),
    "aten.uniform.default": (_call("uniform.default", _ROWS, 1.0, 3.0), 2.0, 0.5774),
    "aten.exponential.default": (_call("exponential.default", _ROWS, 2.0), 0.5, 0.5),
    "aten.rand.default": (_call("rand.default", (64, 64), **_CPU), 0.5, 0.2887),
    "aten.randn.default": (_call("randn.default", (64, 64), **_CPU), 0.0, 1.0),
    "aten.randint.default": (_call("randint.default", 2, (64, 64), **_CPU), 0.5, 0.5),
    "aten.randint.low": (_call("randint.low", 3, 5, (64, 64), **_CPU), 3.5, 0.5),
    "aten.normal.float_float": (_call("normal.float_float", 1.0, 2.0, (64, 64), **_CPU), 1.0, 2.0),
    "aten.randperm.default": (_call("randperm.default", 64, **_CPU), 31.5, 18.5),
    "aten.multinomial.default": (_call("multinomial.default", T(shape=(64, 32), low=0.1), 9, True),
                                 None, None),
}  # fmt: skip


def _strategies(target: str, ranks: int) -> tuple[Prepared, list[OpStrategy]]:
    prepared = prepare(CASES[target][0])
    return prepared, list(strategies(prepared.op, prepared.block, ranks))


def _run(prepared: Prepared, strategy: OpStrategy, ranks: int) -> list[torch.Tensor]:
    """What each rank draws, all having issued the same calls before."""
    local = localize(prepared.op, prepared.block, strategy, ranks)
    state = torch.get_rng_state()
    parts = []
    for rank in range(ranks):
        torch.set_rng_state(state)
        axis = runtime.Axis(group=object(), rank=rank, size=ranks)  # type: ignore[arg-type]
        inputs = [
            place(x.detach(), p, rank, ranks)
            for x, p in zip(prepared.inputs, strategy.inputs, strict=True)
        ]
        parts += execute(local, inputs, strategy.call, axis)
    return parts


def test_every_random_rule_has_a_case() -> None:
    drawn = {t.replace("_.", ".") for t in registered_targets() if _is_random(t)}
    assert drawn == set(CASES)


def _is_random(target: str) -> bool:
    return any(word in target for word in ("dropout", "rand", "bernoulli", "uniform.", "normal.",
                                           "exponential", "multinomial"))  # fmt: skip


@pytest.mark.parametrize("target", CASES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_numbers_agree_exactly_where_values_are_whole(target: str, ranks: int) -> None:
    prepared, found = _strategies(target, ranks)
    features = "feature" in target
    assert isinstance(found[0].outputs[0], Replicate)
    for strategy in found:
        parts = _run(prepared, strategy, ranks)
        (placement,) = strategy.outputs
        if isinstance(placement, Replicate):
            assert all(torch.equal(part, parts[0]) for part in parts), str(strategy)
            continue
        assert isinstance(placement, Shard)
        shape = list(prepared.outputs[0].shape)
        shape[placement.dim] //= ranks
        assert all(list(part.shape) == shape for part in parts), str(strategy)
        if features and placement.dim > 1:  # the ranks drop the same channels
            masks = [_mask(part, prepared, strategy, r, ranks) for r, part in enumerate(parts)]
            assert all(torch.equal(mask[..., :1], masks[0][..., :1]) for mask in masks)
        elif "dropout" in target:
            masks = [_mask(part, prepared, strategy, r, ranks) for r, part in enumerate(parts)]
            assert not torch.equal(masks[0], masks[1])
        else:
            assert not torch.equal(parts[0], parts[1]), str(strategy)


def _mask(
    part: torch.Tensor, prepared: Prepared, strategy: OpStrategy, rank: int, ranks: int
) -> torch.Tensor:
    """What a dropout kept: what is not the value of dropped elements."""
    lowest = part.min()
    return part > lowest + 1e-6


@pytest.mark.parametrize("target", [t for t, case in CASES.items() if case[1] is not None])
def test_numbers_are_distributed_as_asked(target: str) -> None:
    _, mean, deviation = CASES[target]
    assert mean is not None and deviation is not None
    prepared, found = _strategies(target, 2)
    for strategy in found:
        drawn = torch.cat([part.double().flatten() for part in _run(prepared, strategy, 2)])
        assert abs(float(drawn.mean()) - mean) < 0.05 * (1 + deviation), str(strategy)
        assert abs(float(drawn.std()) - deviation) < 0.05 * (1 + deviation), str(strategy)


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_dropout",
                                  "feature_alpha_dropout"])  # fmt: skip
def test_dropout_is_torchs_own(name: str) -> None:
    """Kept and dropped elements have the values that torch gives them."""
    x = torch.randn(64, 16, 6, dtype=torch.float64)
    function = getattr(runtime, f"replicated_{name}")
    axis = runtime.Axis(group=object(), rank=0, size=2)  # type: ignore[arg-type]
    ours = function(x, 0.3, True, axis=axis)
    theirs = getattr(torch.ops.aten, name).default(x, 0.3, True)
    kept_ours, kept_theirs = _kept(ours, x), _kept(theirs, x)
    assert abs(kept_ours.double().mean() - 0.7) < 0.05
    both = kept_ours & kept_theirs
    torch.testing.assert_close(ours[both], theirs[both])
    neither = ~kept_ours & ~kept_theirs
    torch.testing.assert_close(ours[neither], theirs[neither])
    if name.startswith("feature"):
        assert torch.equal(kept_ours, kept_ours[..., :1].expand_as(kept_ours))


def _kept(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    values, counts = y.flatten().unique(return_counts=True)
    return y != values[counts.argmax()]


def test_random_tensors_repeat_when_recomputed() -> None:
    """The CPU's generator decides alone, and checkpointing restores it."""
    axis = runtime.Axis(group=object(), rank=1, size=2)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    first = runtime.sharded_randn_like(torch.empty(8), axis=axis)
    torch.set_rng_state(state)
    assert torch.equal(first, runtime.sharded_randn_like(torch.empty(8), axis=axis))


def test_created_sizes_are_local() -> None:
    prepared = prepare(_call("randn.default", (4, 6)))
    found = strategies(prepared.op, prepared.block, 2)
    columns = next(s for s in found if s.outputs == (Shard(1),))
    assert localize(prepared.op, prepared.block, columns, 2).args == ((4, 3),)
