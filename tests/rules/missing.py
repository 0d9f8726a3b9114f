"""Strategies that would be legal but that no rule states.

``python -m tests.rules.missing [TARGET ...]`` lists them. Every combination of placements
of a sample's inputs is run by two simulated ranks with the plain ATen call; whatever the outputs
turn out to be (whole, sharded, addends) is then checked with its gradients by the oracle.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import torch

from autoplan import runtime
from autoplan.ir.graph import Op
from autoplan.ir.placement import Partial, Placement, Replicate, Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import localize, registered_targets, strategies
from autoplan.rules.blocks import block_counts

from .engine import Prepared, Sample, check_strategy, execute, join, place, prepare

__all__ = ["described", "missing_strategies"]

RANKS = 2
_MAX_COMBINATIONS = 400
_SEEDS = (0, 1)
# What a wrong guess raises when it is run: shapes that do not match, positions out of range.
_WRONG = (AssertionError, RuntimeError, IndexError, ValueError, TypeError)


def described(sample: Sample) -> str:
    """The sample's target, and what makes its sizes special."""
    if "attention" in sample.target and sample.args[1].shape[-2] == 1:
        return f"{sample.target} one key"
    return sample.target


def missing_strategies(sample: Sample) -> list[OpStrategy]:
    """Legal strategies of a sample's plain call that its rule does not yield."""
    prepared = [prepare(sample, seed=seed) for seed in _SEEDS]
    first = prepared[0]
    known = {(s.inputs, s.outputs) for s in strategies(first.op, first.block, RANKS)}
    found = []
    for inputs in _combinations(first):
        for outputs in _outcomes(first, inputs):
            strategy = OpStrategy(inputs=inputs, outputs=outputs)
            if (inputs, outputs) in known or _is_idle(first, strategy):
                continue
            if all(_is_legal(one, strategy) for one in prepared):
                found.append(strategy)
    return found


def _combinations(prepared: Prepared) -> Iterator[tuple[Placement, ...]]:
    options = [_options(prepared, x) for x in prepared.inputs]
    total = 1
    for choices in options:
        total *= len(choices)
    if total <= _MAX_COMBINATIONS:
        yield from itertools.product(*options)
        return
    # Too many: inputs beyond the first three in the state of the first of their shape.
    shapes = [tuple(x.shape) for x in prepared.inputs]
    free = options[:3]
    for head in itertools.product(*free):
        yield (
            *head,
            *(
                next((p for p, s in zip(head, shapes, strict=False) if s == shape), Replicate())
                for shape in shapes[3:]
            ),
        )


def _options(prepared: Prepared, x: torch.Tensor) -> list[Placement]:
    found: list[Placement] = [Replicate()]
    counts = block_counts(prepared.block)
    for dim, size in enumerate(x.shape):
        for pieces in (1, *(k for whole, k in counts if whole == size)):
            if size and size % (pieces * RANKS) == 0:
                found.append(Shard(dim, pieces))
    return [*found, Partial()] if x.is_floating_point() else found


def _outcomes(prepared: Prepared, inputs: tuple[Placement, ...]) -> Iterator[tuple[Placement, ...]]:
    """Placements of the outputs that the values of a run agree with."""
    candidates = [[*_options(prepared, y), Partial()] for y in prepared.outputs]
    op = prepared.op
    seen = set()
    for guess in dict.fromkeys(candidates[0]):
        strategy = OpStrategy(inputs=inputs, outputs=(guess,) * len(candidates))
        try:
            local = localize(op, prepared.block, strategy, RANKS)
        except _WRONG:
            continue
        if local in seen:
            continue
        seen.add(local)
        parts = _run(local, prepared, inputs)
        if parts is None or any(len(part) != len(candidates) for part in parts):
            continue
        matches = [
            [p for p in dict.fromkeys(options) if _agrees([r[i] for r in parts], p, whole)]
            for i, (options, whole) in enumerate(zip(candidates, prepared.outputs, strict=True))
        ]
        yield from itertools.product(*matches)


def _run(
    op: Op, prepared: Prepared, inputs: tuple[Placement, ...]
) -> list[list[torch.Tensor]] | None:
    results = []
    for rank in range(RANKS):
        axis = runtime.Axis(group=object(), rank=rank, size=RANKS)  # type: ignore[arg-type]
        local = [
            place(x.detach(), p, rank, RANKS) for x, p in zip(prepared.inputs, inputs, strict=True)
        ]
        try:
            results.append(execute(op, local, "", axis))
        except _WRONG:
            return None
    return results


def _agrees(parts: list[torch.Tensor], placement: Placement, whole: torch.Tensor) -> bool:
    if isinstance(placement, Replicate):
        return all(_equal(part, whole) for part in parts)
    if isinstance(placement, Shard):
        size = list(whole.shape)
        size[placement.dim] //= RANKS
        if any(list(part.shape) != size for part in parts):
            return False
    elif any(part.shape != whole.shape for part in parts) or not whole.is_floating_point():
        return False
    return _equal(join(parts, placement), whole)


def _equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not found.is_floating_point():
        return torch.equal(found, expected)
    return torch.allclose(found.detach(), expected.detach(), rtol=1e-7, atol=1e-9, equal_nan=True)


def _is_idle(prepared: Prepared, strategy: OpStrategy) -> bool:
    """Whether nothing is divided, or an output that is zero is taken for an addend."""
    if all(isinstance(p, Replicate) for p in strategy.inputs):
        return True
    return any(
        isinstance(p, Partial) and not torch.any(y != 0)
        for p, y in zip(strategy.outputs, prepared.outputs, strict=True)
    )


def _is_legal(prepared: Prepared, strategy: OpStrategy) -> bool:
    try:
        check_strategy(prepared, strategy, RANKS)
    except _WRONG:
        return False
    return True


def _report(targets: list[str]) -> None:
    from .omitted import reason_for
    from .samples import Sizes, samples

    torch.set_num_threads(1)
    left_out: dict[str, int] = {}
    missing = 0
    stated: set[tuple[str, str]] = set()
    proved = 0
    for sample in samples(Sizes()):
        if targets and not any(target in sample.target for target in targets):
            continue
        prepared = prepare(sample)
        found = strategies(prepared.op, prepared.block, RANKS)
        proved += len(found)
        stated |= {(sample.target, str(strategy)) for strategy in found}
        for strategy in missing_strategies(sample):
            entry = reason_for(described(sample), str(strategy))
            if entry is not None:
                left_out[entry.reason] = left_out.get(entry.reason, 0) + 1
                continue
            missing += 1
            print(f"missing  {described(sample)}  {strategy}")
    print(
        f"{len(registered_targets())} targets have rules; {proved} strategies of samples on "
        f"{RANKS} ranks, {len(stated)} of them distinct"
    )
    print(f"{missing} missing; {sum(left_out.values())} left out on purpose:")
    for reason, count in left_out.items():
        print(f"  {count:4}  {reason}")


if __name__ == "__main__":
    _report(sys.argv[1:])
