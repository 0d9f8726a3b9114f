"""Rules against captured models: coverage, size, and the layouts a good plan needs."""

from __future__ import annotations

import pytest

from autoplan.capture import capture, load_model
from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.placement import Partial, Placement, Replicate, Shard, conversion, required_state
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import has_rule, localize, strategies

_GRAPHS: dict[str, Graph] = {}


def _graph(name: str) -> Graph:
    if name not in _GRAPHS:
        _GRAPHS[name] = capture(load_model(name), seq_len=64, dtype="bfloat16").at(2)
    return _GRAPHS[name]


def _layer(name: str) -> BlockClass:
    graph = _graph(name)
    return graph.block_class(graph.instances[1])


# Operators of which no dim can be sharded by any rule: the routing of tokens to experts,
# running statistics, and cross entropy over a vocabulary (or classes) that is odd.
_REPLICATED = {
    "gpt2": set(),
    "llama3-8b": set(),
    "nanogpt": set(),
    "mixtral-8x7b": set(),
    "resnet50": set(),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama3-8b",
        "nanogpt",
        pytest.param("mixtral-8x7b", marks=pytest.mark.slow),
        pytest.param("resnet50", marks=pytest.mark.slow),
    ],
)
def test_every_op_has_a_rule_and_few_strategies(name: str) -> None:
    replicated = set()
    for block in _graph(name).classes:
        for op in block.ops:
            assert has_rule(op.target), op.target
            found = strategies(op, block, 2)
            assert found == strategies(op, block, 2)
            assert len(found) <= 8, f"{op.target}: {list(map(str, found))}"
            for strategy in found:
                localize(op, block, strategy, 2)
            if len(found) == 1:
                replicated.add(op.target)
    allowed = {prefix for target in replicated for prefix in _REPLICATED[name]
               if target.startswith(prefix)}  # fmt: skip
    assert allowed == _REPLICATED[name]
    assert all(target.startswith(tuple(_REPLICATED[name])) for target in replicated)


def _reachable(block: BlockClass, ranks: int, free: set[str]) -> dict[str, set[Placement]]:
    """Placements each tensor can have with no collective but those on tensors in ``free``."""
    placements: dict[str, set[Placement]] = {}
    for tensor in block.tensors:
        if tensor.name in block.parameters:
            dims = range(len(tensor.shape))
            shards = {Shard(d, k) for d in dims for k in (1, 2, 3)}
            placements[tensor.name] = {Replicate(), *shards}
        elif tensor.name in (*block.inputs, *block.shared, *block.buffers):
            placements[tensor.name] = {Replicate()}
    for op in block.ops:
        for strategy in strategies(op, block, ranks):
            if all(
                _feasible(block, name, required, strategy, placements, free)
                for name, required in zip(op.inputs, strategy.inputs, strict=True)
            ):
                for name, placement in zip(op.outputs, strategy.outputs, strict=True):
                    placements.setdefault(name, set()).add(placement)
    return placements


def _feasible(
    block: BlockClass,
    name: str,
    required: Placement,
    strategy: OpStrategy,
    placements: dict[str, set[Placement]],
    free: set[str],
) -> bool:
    tensor = block.tensor(name)
    state = required_state(required, strategy.outputs, differentiable=tensor.requires_grad)
    for produced in placements.get(name, ()):
        edge = conversion(produced, state, differentiable=tensor.requires_grad)
        if edge is None:
            continue
        if edge.forward is None and edge.backward is None:
            return True
        if name in free or (name in block.parameters and produced == required):
            return True
    return False


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "nanogpt"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_runs_tensor_parallel_with_collectives_at_norms_and_projections_only(
    name: str, ranks: int
) -> None:
    block = _layer(name)
    products = [op for op in block.ops if op.target.split(".")[1] in ("linear", "addmm")]
    norm_ends = {op.inputs[1] if "addmm" in op.target else op.inputs[0] for op in products}
    reachable = _reachable(block, ranks, free=norm_ends)
    last = products[-1]
    row_parallel = [
        strategy for strategy in strategies(last, block, ranks) if strategy.outputs == (Partial(),)
    ]
    assert row_parallel
    assert Partial() in reachable[last.outputs[0]]
    attention = next(op for op in block.ops if "scaled_dot_product" in op.target)
    assert Shard(1) in reachable[attention.outputs[0]], "heads stay local"
