"""What the registry adds to every rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoplan.errors import UnsupportedOpError
from autoplan.ir.graph import BlockClass, Op, Ref, Tensor, TensorKind
from autoplan.ir.placement import Shard
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import OpView, has_rule, localize, register_rule, registry, strategies
from autoplan.rules.blocks import block_counts, view_groups


def _block(
    *ops: Op, kinds: dict[str, TensorKind] | None = None, **shapes: tuple[int, ...]
) -> BlockClass:
    tensors = tuple(
        Tensor(
            name=name,
            shape=shape,
            dtype="float32",
            kind=(kinds or {}).get(name, TensorKind.ACTIVATION),
            requires_grad=True,
            base=name,
        )
        for name, shape in shapes.items()
    )
    return BlockClass(
        name="block",
        ops=ops,
        tensors=tensors,
        inputs=(),
        outputs=(),
        parameters=(),
        buffers=(),
        shared=(),
    )


def _op(target: str, *args: object, outputs: tuple[str, ...] = ("y",)) -> Op:
    return Op(name="op", target=target, args=args, outputs=outputs)  # type: ignore[arg-type]


def _texts(op: Op, block: BlockClass, ranks: int) -> list[str]:
    return list(map(str, strategies(op, block, ranks)))


def test_linear_finds_batch_column_and_row() -> None:
    op = _op("aten.linear.default", Ref("x"), Ref("w"), Ref("b"))
    block = _block(op, x=(2, 4, 8), w=(6, 8), b=(6,), y=(2, 4, 6))
    assert _texts(op, block, 2) == [
        "R,R,R -> R",
        "S(0),R,R -> S(0)",
        "S(1),R,R -> S(1)",
        "R,S(0),S(0) -> S(2)",
        "S(2),S(1),R -> P [row_parallel_linear]",
    ]
    assert _texts(op, block, 4) == [
        "R,R,R -> R",
        "S(1),R,R -> S(1)",
        "S(2),S(1),R -> P [row_parallel_linear]",
    ], "6 columns and a batch of 2 do not divide by 4"


def test_fused_projection_is_sharded_in_blocks() -> None:
    linear = _op("aten.linear.default", Ref("x"), Ref("w"))
    split = Op(
        name="split",
        target="aten.split.Tensor",
        args=(Ref("y"), 4, 1),
        outputs=("q", "k", "v"),
    )
    shapes = {"x": (3, 8), "w": (12, 8), "y": (3, 12), "q": (3, 4), "k": (3, 4), "v": (3, 4)}
    block = _block(linear, split, **shapes)
    assert "R,S(0,3) -> S(1,3)" in _texts(linear, block, 2)
    assert _texts(split, block, 2) == ["R -> R,R,R", "S(1,3) -> S(1),S(1),S(1)", "P -> P,P,P"]
    blocked = strategies(split, block, 2)[1]
    assert localize(split, block, blocked, 2).args == (Ref("y"), 2, 1)


def test_flattening_keeps_a_sharded_sequence() -> None:
    op = _op("aten.view.default", Ref("x"), (-1, 8))
    block = _block(op, x=(2, 4, 8), y=(8, 8))
    assert "S(1) -> S(0,2)" in _texts(op, block, 2)
    rows = next(s for s in strategies(op, block, 2) if str(s) == "S(1) -> S(0,2)")
    assert localize(op, block, rows, 2).args == (Ref("x"), (4, 8))


def test_view_sizes_come_from_the_map_and_not_from_matching_numbers() -> None:
    op = _op("aten.view.default", Ref("x"), (4, 4, 4))
    block = _block(op, x=(4, 16), y=(4, 4, 4))
    heads = next(s for s in strategies(op, block, 4) if s.outputs == (Shard(1),))
    assert localize(op, block, heads, 4).args[1] == (4, 1, 4)


def test_only_activations_are_addends() -> None:
    op = _op("aten.neg.default", Ref("x"))
    for kind in TensorKind:
        block = _block(op, kinds={"x": kind}, x=(3,), y=(3,))
        partial = "P -> P" in _texts(op, block, 2)
        assert partial == (kind is TensorKind.ACTIVATION), kind


def test_unknown_op_is_replicated_only() -> None:
    op = _op("other.mystery.default", Ref("x"))
    assert not has_rule(op.target)
    assert _texts(op, _block(op, x=(4,), y=(4,)), 2) == ["R -> R"]


def test_unknown_random_op_is_an_error() -> None:
    op = _op("aten.poisson.default", Ref("x"))
    with pytest.raises(UnsupportedOpError, match="random"):
        strategies(op, _block(op, x=(4,), y=(4,)), 2)


def test_one_rank_has_one_strategy() -> None:
    op = _op("aten.dropout.default", Ref("x"), 0.1, True)
    found = strategies(op, _block(op, x=(4,), y=(4,)), 1)
    assert list(map(str, found)) == ["R -> R [replicated_dropout]"]


def test_duplicates_and_illegal_facts_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", {})

    def facts(op: Op, view: OpView) -> Iterator[OpStrategy]:
        for shard in (Shard(0), Shard(0), Shard(1), Shard(5)):
            yield view.strategy({0: shard}, shard)

    register_rule("mine.op.default", facts)
    op = _op("mine.op.default", Ref("x"))
    assert _texts(op, _block(op, x=(4, 3), y=(4, 3)), 2) == ["R -> R", "S(0) -> S(0)"]
    register_rule("mine::op.default", facts)  # its file is loaded again
    with pytest.raises(ValueError, match="already has a rule"):
        register_rule("mine.op.default", lambda op, view: facts(op, view))


def test_a_target_without_overload_covers_all_overloads() -> None:
    assert has_rule("aten.cos.default")
    assert has_rule("aten.add.Tensor")
    assert has_rule("aten.max.dim")
    assert not has_rule("aten.logsumexp.names")


@pytest.mark.parametrize(
    ("source", "result", "groups"),
    [
        ((2, 3, 8), (6, 8), (((0, 1), (0,)), ((2,), (1,)))),
        ((6, 8), (2, 3, 2, 4), (((0,), (0, 1)), ((1,), (2, 3)))),
        ((1, 6), (6,), (((0, 1), (0,)),)),
        ((4, 6), (6, 4), (((0, 1), (0, 1)),)),
        ((2, 1), (2,), (((0,), (0,)), ((1,), ()))),
    ],
)
def test_view_groups(
    source: tuple[int, ...], result: tuple[int, ...], groups: tuple[object, ...]
) -> None:
    assert view_groups(source, result) == groups


def test_block_counts_ignore_unequal_pieces() -> None:
    op = _op("aten.split_with_sizes.default", Ref("x"), (6, 2), 0, outputs=("a", "b"))
    assert block_counts(_block(op, x=(8,), a=(6,), b=(2,))) == ()
