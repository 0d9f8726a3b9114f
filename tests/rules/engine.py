"""The oracle: an operator on simulated ranks against the same operator whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autoplan import runtime
from autoplan.ir.graph import Arg, BlockClass, Const, Op, Ref, Tensor, TensorKind
from autoplan.ir.placement import Partial, Placement, Replicate, Shard, shard_shape
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import localize
from autoplan.runtime import collectives

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 6e-2}


@dataclass(frozen=True, kw_only=True)
class T:
    """A tensor argument of a sample: uniform in [low, high), or integers below ``below``."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    low: float = -1.0
    high: float = 1.0
    below: int = 0
    values: tuple[int, ...] = ()
    grad: bool = True

    def draw(self) -> torch.Tensor:
        dtype = getattr(torch, self.dtype)
        if self.values:
            return torch.tensor(self.values, dtype=dtype).reshape(self.shape)
        if self.dtype == "bool":
            return torch.rand(self.shape) > 0.5
        if self.below:
            return torch.randint(self.below, self.shape, dtype=dtype)
        return torch.empty(self.shape, dtype=torch.float64).uniform_(self.low, self.high).to(dtype)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One ATen call with concrete sizes.

    ``pieces`` adds splits that make blocks useful, ``padded`` tables whose rows make padding so.
    Only the first ``read`` outputs are compared, if given: others are torch's own affair.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    pieces: tuple[tuple[int, int], ...] = ()
    padded: tuple[int, ...] = ()
    read: int | None = None


class ThreadGroup:
    """A process group whose ranks are threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=20)
        self.tensors: dict[int, torch.Tensor] = {}
        self.ranks: dict[int, int] = {}

    def everyones(self, value: Any) -> list[Any]:
        """What each rank passed, in order of rank."""
        self.tensors[self.ranks[threading.get_ident()]] = value
        self.barrier.wait()
        found = [self.tensors[rank] for rank in range(self.size)]
        self.barrier.wait()
        self.tensors.clear()
        self.barrier.wait()
        return found

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self.tensors[threading.get_ident()] = tensor.clone()
        self.barrier.wait()
        stacked = torch.stack(list(self.tensors.values()))
        result = stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.sum(0)
        self.barrier.wait()
        self.tensors.clear()
        self.barrier.wait()
        tensor.copy_(result)


def threaded_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the collectives of ``torch.distributed`` work on a `ThreadGroup`."""

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        group.all_reduce(tensor, op)

    def all_gather(output: torch.Tensor, local: torch.Tensor, group: Any) -> None:
        output.copy_(torch.cat(group.everyones(local.clone())))

    def all_to_all(
        output: torch.Tensor,
        sent: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        group: Any = None,
    ) -> None:
        me = group.ranks[threading.get_ident()]
        parts = torch.split(sent.clone(), input_split_sizes or sent.shape[0] // group.size)
        received = [theirs[me] for theirs in group.everyones(parts)]
        if output_split_sizes is not None:
            assert [part.shape[0] for part in received] == output_split_sizes
        output.copy_(torch.cat(received))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "all_to_all_single", all_to_all)
    monkeypatch.setattr(collectives, "_all_gather_flat", all_gather)


def on_ranks(ranks: int, body: Callable[[runtime.Axis], Any]) -> list[Any]:
    """Results of ``body`` run by each rank, in threads that can reduce tensors."""
    group = ThreadGroup(ranks)
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        group.ranks[threading.get_ident()] = rank
        try:
            results[rank] = body(runtime.Axis(group=group, rank=rank, size=ranks))  # type: ignore[arg-type]
        except BaseException as error:
            errors.append(error)
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def shard(
    x: torch.Tensor, placement: Shard, rank: int, ranks: int, filler: float = 0.0
) -> torch.Tensor:
    """Slice of each block that a rank holds, blocks one after another; padding is ``filler``."""
    if placement.pad:
        shape = list(x.shape)
        shape[placement.dim] = -x.shape[placement.dim] % ranks
        x = torch.cat([x, x.new_full(shape, filler)], placement.dim)
    blocks = x.chunk(placement.blocks, placement.dim)
    parts = [block.chunk(ranks, placement.dim)[rank] for block in blocks]
    return torch.cat(parts, placement.dim)


def join(parts: list[torch.Tensor], placement: Placement) -> torch.Tensor:
    """Whole value of the ranks' parts, padding included."""
    if isinstance(placement, Replicate):
        return parts[0]
    if isinstance(placement, Partial):
        return torch.stack(parts).sum(0)
    pieces = [part.chunk(placement.blocks, placement.dim) for part in parts]
    ordered = [piece[block] for block in range(placement.blocks) for piece in pieces]
    return torch.cat(ordered, placement.dim)


def _joined(
    parts: list[torch.Tensor], placement: Placement, shape: tuple[int, ...]
) -> torch.Tensor:
    """Whole value without padding."""
    whole = join(parts, placement)
    if isinstance(placement, Shard) and placement.pad:
        return whole.narrow(placement.dim, 0, shape[placement.dim])
    return whole


def _padding(parts: list[torch.Tensor], placement: Shard, shape: tuple[int, ...]) -> torch.Tensor:
    """What the ranks hold beyond the whole value."""
    joined = join(parts, placement)
    dim, size = placement.dim, shape[placement.dim]
    return joined.narrow(dim, size, joined.shape[dim] - size)


def place(
    x: torch.Tensor, placement: Placement, rank: int, ranks: int, filler: float = 0.0
) -> torch.Tensor:
    """What a rank holds of ``x``; addends are random."""
    if isinstance(placement, Shard):
        return shard(x, placement, rank, ranks, filler)
    if isinstance(placement, Partial):
        generator = torch.Generator().manual_seed(7)
        first = [
            torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
            for _ in range(ranks - 1)
        ]
        return first[rank] if rank < ranks - 1 else x - sum(first)
    return x


def _build(sample: Sample) -> tuple[Op, list[torch.Tensor], list[str]]:
    leaves: list[torch.Tensor] = []

    def convert(value: Any) -> Any:
        if isinstance(value, T):
            leaf = value.draw()
            leaves.append(leaf.requires_grad_(value.grad and leaf.is_floating_point()))
            return Ref(f"x{len(leaves) - 1}")
        if isinstance(value, list | tuple):
            return tuple(convert(item) for item in value)
        return value

    op = Op(
        name="op",
        target=sample.target,
        args=tuple(convert(arg) for arg in sample.args),
        kwargs=tuple((key, convert(value)) for key, value in sample.kwargs.items()),
        outputs=(),
    )
    return op, leaves, [f"x{i}" for i in range(len(leaves))]


def _evaluate(arg: Arg, tensors: dict[str, torch.Tensor]) -> Any:
    match arg:
        case Ref(name):
            return tensors[name]
        case Const("device", _):
            return torch.device("cpu")
        case Const(_, name):
            return getattr(torch, name)
        case tuple():
            return [_evaluate(item, tensors) for item in arg]
    return arg


def execute(op: Op, inputs: list[torch.Tensor], call: str, axis: Any) -> list[torch.Tensor]:
    """Outputs of an operator, or of the runtime function that replaces it."""
    tensors = {name: x.clone() for name, x in zip(op.inputs, inputs, strict=True)}
    args = [_evaluate(arg, tensors) for arg in op.args]
    kwargs = {key: _evaluate(value, tensors) for key, value in op.kwargs}
    if call:
        result = getattr(runtime, call)(*args, **kwargs, axis=axis)
    else:
        namespace, name, overload = op.target.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        result = function(*args, **kwargs)
    return list(result) if isinstance(result, tuple | list) else [result]


@dataclass(frozen=True)
class Prepared:
    """A sample with its block, values and whole results."""

    op: Op
    block: BlockClass
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    seeds: list[torch.Tensor]
    grads: list[torch.Tensor]


def prepare(sample: Sample, *, seed: int = 0) -> Prepared:
    """Run a sample whole and describe it as a block of one operator."""
    torch.manual_seed(seed)
    op, inputs, names = _build(sample)
    outputs = execute(op, inputs, "", None)[: sample.read]
    names_out = tuple(f"y{i}" for i in range(len(outputs)))
    op = Op(name="op", target=op.target, args=op.args, kwargs=op.kwargs, outputs=names_out)
    tensors = [
        *[_describe(n, x) for n, x in zip(names, inputs, strict=True)],
        *[_describe(n, y) for n, y in zip(names_out, outputs, strict=True)],
    ]
    ops = [op]
    for size, pieces in sample.pieces:
        tag = f"s{size}_{pieces}"
        parts = tuple(f"{tag}_{i}" for i in range(pieces))
        tensors.append(_tensor(tag, (size,), "float64", True))
        tensors.extend(_tensor(part, (size // pieces,), "float64", True) for part in parts)
        args = (Ref(tag), size // pieces, 0)
        ops.append(Op(name=tag, target="aten.split.Tensor", args=args, outputs=parts))
    for rows in sample.padded:
        tag = f"t{rows}"
        tensors.append(_tensor(tag, (rows, 1), "float64", True))
        tensors.append(_tensor(f"{tag}_ids", (1,), "int64", False))
        tensors.append(_tensor(f"{tag}_found", (1, 1), "float64", True))
        refs = (Ref(tag), Ref(f"{tag}_ids"))
        found = (f"{tag}_found",)
        ops.append(Op(name=tag, target="aten.embedding.default", args=refs, outputs=found))
    block = BlockClass(
        name="block",
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=(),
        outputs=names_out,
        parameters=(),
        buffers=(),
        shared=(),
    )
    seeds = [torch.rand_like(y) if y.requires_grad else y for y in outputs]
    return Prepared(op, block, inputs, outputs, seeds, _gradients(outputs, inputs, seeds))


def _tensor(name: str, shape: tuple[int, ...], dtype: str, grad: bool) -> Tensor:
    return Tensor(
        name=name,
        shape=shape,
        dtype=dtype,
        kind=TensorKind.ACTIVATION,
        requires_grad=grad,
        base=name,
    )


def _describe(name: str, x: torch.Tensor) -> Tensor:
    return _tensor(name, tuple(x.shape), str(x.dtype).removeprefix("torch."), x.requires_grad)


def _close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


def _gradients(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], grads: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Gradients of the inputs that have one (zeros where unused), in slot order."""
    pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not pairs or not wanted:
        return []
    found = torch.autograd.grad(
        [y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
    )
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def check_strategy(prepared: Prepared, strategy: OpStrategy, ranks: int) -> None:
    """Compare values and gradients of the ranks with the whole operator."""
    op, whole = prepared.op, prepared.inputs
    tolerance = max((_TOLERANCE.get(x.dtype, 0.0) for x in whole), default=0.0)
    local_op = localize(op, prepared.block, strategy, ranks)
    # Where a runtime function masks it, padding may be anything; else it is finite.
    poison = float("nan") if strategy.call.startswith("vocab_cross") else 2.5

    def body(axis: runtime.Axis) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        inputs = [
            place(x.detach(), p, axis.rank, ranks, poison).clone().requires_grad_(x.requires_grad)
            for x, p in zip(whole, strategy.inputs, strict=True)
        ]
        outputs = execute(local_op, inputs, strategy.call, axis)[: len(prepared.outputs)]
        grads = [
            shard(g, p, axis.rank, ranks) if isinstance(p, Shard) else g
            for g, p in zip(prepared.seeds, strategy.outputs, strict=True)
        ]
        return [y.detach() for y in outputs], _gradients(outputs, inputs, grads)

    if strategy.call:
        results = on_ranks(ranks, body)
    else:
        results = [body(runtime.Axis(group=object(), rank=r, size=ranks)) for r in range(ranks)]  # type: ignore[arg-type]
    for index, (expected, placement) in enumerate(
        zip(prepared.outputs, strategy.outputs, strict=True)
    ):
        parts = [outputs[index] for outputs, _ in results]
        local = shard_shape(tuple(expected.shape), placement, ranks)
        assert all(tuple(part.shape) == local for part in parts), f"{strategy}: local shape"
        found = _joined(parts, placement, tuple(expected.shape))
        _close(found, expected.detach(), tolerance, f"{strategy} output {index}")
        if isinstance(placement, Replicate):
            for part in parts:
                _close(
                    part, expected.detach(), tolerance, f"{strategy} output {index} on each rank"
                )
    whole_output = all(isinstance(p, Replicate) for p in strategy.outputs)
    differentiable = [p for p, x in zip(strategy.inputs, whole, strict=True) if x.requires_grad]
    for index, expected in enumerate(prepared.grads):
        parts = [grads[index] for _, grads in results]
        placement = differentiable[index]
        what = f"{strategy} gradient {index}"
        if isinstance(placement, Shard):
            _close(_joined(parts, placement, tuple(expected.shape)), expected, tolerance, what)
            assert not _padding(parts, placement, tuple(expected.shape)).any(), f"{what}: padding"
        elif isinstance(placement, Replicate) and not whole_output:
            _close(torch.stack(parts).sum(0), expected, tolerance, what)
        else:
            for part in parts:
                _close(part, expected, tolerance, what)
