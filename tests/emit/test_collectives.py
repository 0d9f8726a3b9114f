"""Collectives in the text of a program against those the cost model charges for."""

import ast
from collections import Counter

import pytest

from autoplan.capture import capture, load_model
from autoplan.costs.block import collectives
from autoplan.emit import program_files
from autoplan.ir.mesh import Group, Mesh
from autoplan.ir.placement import Shard, parse_placement
from autoplan.ir.record import graph_from_record, strategies_from_record
from autoplan.profiles import load_cluster
from tests.plans import Setup, make_plan

BACKWARD = {
    ("all_gather", "reduce_scatter"): "reduce_scatter",
    ("all_gather", "slice"): None,
    ("all_reduce", "identity"): None,
    ("all_reduce", "all_reduce"): "all_reduce",
    ("reduce_scatter", ""): "all_gather",
    ("all_to_all", ""): "all_to_all",
    ("partial_grad", ""): "all_reduce",
    ("shard", ""): "all_gather",
}
DEFAULT = {"all_gather": "reduce_scatter", "all_reduce": "identity"}


@pytest.fixture(scope="module")
def captured():
    source = load_model("nanogpt").reduced(layers=2, tp=2)
    found = capture(source, seq_len=16, dtype="float32")
    return found.at(2), found.record()


def written(node: ast.ClassDef, block) -> Counter:
    """(kind, backward) of each collective that the conversions of a block class issue."""
    count = Counter()
    for call in ast.walk(node):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        name = call.func.attr
        if not (isinstance(call.func.value, ast.Name) and call.func.value.id == "rt"):
            continue
        if name not in {key for key, _ in BACKWARD}:
            continue
        keywords = {k.arg: k.value for k in call.keywords}
        how = keywords.get("backward")
        mode = how.value if isinstance(how, ast.Constant) else DEFAULT.get(name, "")
        backward = BACKWARD[name, mode]
        if name not in ("partial_grad", "shard"):
            count[name, False] += 1
        if backward is not None and block.tensor(call.args[0].id).requires_grad:
            count[backward, True] += 1
    return count


@pytest.mark.parametrize(
    "setup",
    [
        Setup(mesh=Mesh(tp=2)),
        Setup(mesh=Mesh(tp=2), boundary=Shard(1)),
        *(Setup(mesh=Mesh(tp=2), seed=seed) for seed in range(6)),
    ],
)
def test_conversions_in_the_text_are_those_of_the_cost_model(captured, setup):
    graph, record = captured
    plan = make_plan(graph, record, setup, seq_len=16)
    tree = ast.parse(program_files(plan)["model.py"])
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    chosen = strategies_from_record(plan.graph)
    total = 0
    for index, block in enumerate(graph_from_record(plan.graph).classes):
        ends = plan.graph.classes[index]
        charged = collectives(
            block,
            chosen[index],
            tuple(map(parse_placement, ends.boundary_in)),
            tuple(map(parse_placement, ends.boundary_out)),
            Group(2, 2),
            load_cluster("cpu:2"),
        )
        want = Counter((call.kind.value, call.backward) for call in charged)
        for strategy in chosen[index].values():
            want.subtract((inner.kind.value, inner.backward) for inner in strategy.inner)
        assert +want == written(classes[f"Block{index}"], block)
        total += sum(want.values())
    assert total > 0


def test_one_rank_needs_no_collective(captured):
    graph, record = captured
    text = program_files(make_plan(graph, record, Setup(), seq_len=16))["model.py"]
    assert not [name for name, _ in BACKWARD if f"rt.{name}(" in text]


def test_each_operator_is_one_call(captured):
    graph, record = captured
    plan = make_plan(graph, record, Setup(mesh=Mesh(tp=2), seed=3), seq_len=16)
    text = program_files(plan)["model.py"]
    tree = ast.parse(text)
    for index, block in enumerate(graph.classes):
        node = next(
            n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == f"Block{index}"
        )
        calls = [
            ast.unparse(call.func)
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("aten.")
        ]
        replaced = [s for s in strategies_from_record(plan.graph)[index].values() if s.call]
        assert len(calls) == len(block.ops) - len(replaced)
        assert set(calls) <= {op.target for op in block.ops}
