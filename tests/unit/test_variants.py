"""Copies of a block that are planned differently become classes of their own."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.graph import (
    BlockClass,
    BlockInstance,
    Graph,
    Init,
    Op,
    Parameter,
    Ref,
    Tensor,
    TensorKind,
)
from autoplan.ir.levels import level_runs, level_summary, levels_text
from autoplan.ir.variants import class_families, split_classes

KINDS = (0, 1, 1, 2, 1, 1, 2, 3)
"""Classes of the chain: a stem, two kinds of layers, a head."""


def _block(index: int) -> BlockClass:
    def tensor(name: str, kind: TensorKind) -> Tensor:
        shape = (2, 4) if name != "w" else (4,)
        return Tensor(
            name=name, shape=shape, dtype="float32", kind=kind, requires_grad=True, base=name
        )

    first = index == 0
    return BlockClass(
        name="Layer_variant_2" if index == 2 else ("Stem", "Layer", "", "Head")[index],
        ops=(
            Op(
                name="mul",
                target="aten.mul.Tensor",
                args=(Ref("w"), 1.0 + index) if first else (Ref("x"), Ref("w")),
                outputs=("y",),
                flop=index,
            ),
        ),
        tensors=(
            *(() if first else (tensor("x", TensorKind.BOUNDARY),)),
            tensor("w", TensorKind.PARAMETER),
            tensor("y", TensorKind.ACTIVATION),
        ),
        inputs=() if first else ("x",),
        outputs=("y",),
        parameters=("w",),
        buffers=(),
        shared=(),
    )


@pytest.fixture(scope="module")
def graph() -> Graph:
    return _graph()


def _graph() -> Graph:
    return Graph(
        name="chain",
        dtype="float32",
        micro_batch_size=2,
        inputs=(),
        shared_ops=(),
        shared_tensors=(),
        classes=tuple(map(_block, range(4))),
        instances=tuple(
            BlockInstance(name=f"b{k}", block_class=kind, parameters=(f"b{k}.w",), buffers=())
            for k, kind in enumerate(KINDS)
        ),
        parameters=tuple(
            Parameter(
                fqn=f"b{k}.w", shape=(4,), dtype="float32", trainable=True, init=Init(kind="normal")
            )
            for k in range(len(KINDS))
        ),
        buffers=(),
    )


@given(picks=st.lists(st.sampled_from(["a", "b", "c"]), min_size=8, max_size=8))
def test_a_variant_graph_is_the_same_chain(picks: list[str]) -> None:
    graph = _graph()
    found = split_classes(graph, picks)
    found.graph.validate()
    names = [block.name for block in found.graph.classes]
    assert len(set(names)) == len(names) == len(found.origins) == len(found.picks)
    assert list(found.origins) == sorted(found.origins)
    wanted = {(kind, pick) for kind, pick in zip(KINDS, picks, strict=True)}
    assert sorted(zip(found.origins, found.picks, strict=True)) == sorted(wanted)
    for before, after, pick in zip(graph.instances, found.graph.instances, picks, strict=True):
        assert (after.name, after.parameters) == (before.name, before.parameters)
        assert found.origins[after.block_class] == before.block_class
        assert found.picks[after.block_class] == pick
        old, new = graph.block_class(before), found.graph.block_class(after)
        assert new.ops is old.ops and new.parameters == old.parameters
    families = class_families(found.graph)
    for index, family in enumerate(families):
        assert found.origins[index] == found.origins[family]
        assert family == found.origins.index(found.origins[index])


@pytest.mark.parametrize("pick", ["one", ("full", 3), None])
def test_copies_that_agree_leave_the_graph_as_it_is(graph: Graph, pick: Hashable) -> None:
    found = split_classes(graph, [pick] * len(KINDS))
    assert found.graph is graph
    assert found.origins == (0, 1, 2, 3)
    assert found.picks == (pick,) * 4
    by_class = split_classes(graph, KINDS)
    assert by_class.graph is graph and by_class.picks == (0, 1, 2, 3)
    assert class_families(graph) == (0, 1, 2, 3)


def test_variants_are_named_in_the_order_of_the_chain(graph: Graph) -> None:
    picks = ["x", "late", "early", "x", "early", "late", "y", "x"]
    found = split_classes(graph, picks)
    assert [block.name for block in found.graph.classes] == [
        "Stem", "Layer", "Layer_variant_3", "Layer_variant_2", "Layer_variant_2_variant_2", "Head",
    ]  # fmt: skip
    assert found.picks == ("x", "late", "early", "x", "y", "x")
    assert [i.block_class for i in found.graph.instances] == [0, 1, 2, 3, 2, 1, 4, 5]
    assert split_classes(graph, picks) == found


def test_each_block_needs_a_pick(graph: Graph) -> None:
    with pytest.raises(ValueError, match="3 picks for 8 blocks"):
        split_classes(graph, [0, 0, 1])


@pytest.mark.parametrize(
    ("levels", "summary", "text", "runs"),
    [
        ([], "none", "none", ()),
        (["full"] * 3, "full", "full", (("full", 0, 3),)),
        (
            ["none", "full", "full", "selective"], "mixed",
            "full in 2, selective in 1 of 4 blocks, else none",
            (("none", 0, 1), ("full", 1, 3), ("selective", 3, 4)),
        ),
        (
            ["selective", "full"], "mixed", "full in 1 of 2 blocks, else selective",
            (("selective", 0, 1), ("full", 1, 2)),
        ),
    ],
)  # fmt: skip
def test_levels_in_words(
    levels: list[str], summary: str, text: str, runs: tuple[tuple[str, int, int], ...]
) -> None:
    assert level_summary(levels) == summary
    assert levels_text(levels) == text
    assert level_runs(levels) == runs
