"""Random operators. Ranks that hold the same value must draw the same numbers, others not.

The runtime draws a seed for each call that is equal on all ranks of the axis. A
``replicated_`` function uses it as it is, a ``sharded_`` one adds the rank. Either keeps the
distribution; which numbers are drawn depends on the plan, as it does on the device.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.graph import Op
from autoplan.ir.placement import Shard, shard_shape
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.pointwise import elementwise_shards
from autoplan.rules.registry import OpView, P, R, rule
from autoplan.rules.views import with_arg

__all__ = ["created", "drawn", "dropout", "feature_dropout", "multinomial"]

_DROPOUTS = ("dropout", "alpha_dropout")
_FEATURE_DROPOUTS = ("feature_dropout", "feature_alpha_dropout")


def _name(op: Op) -> str:
    return op.target.split(".")[1].rstrip("_")


def _drops(view: OpView) -> bool:
    return view.arg(1, "p", 0.5) not in (0, 0.0) and view.arg(2, "train", True) is True


@rule(*(f"aten.{name}{end}.default" for name in _DROPOUTS for end in ("", "_")))
def dropout(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Any dim; the identity when it drops nothing."""
    if not _drops(view):
        yield from elementwise_shards(view)
        yield view.strategy({0: P}, P)
        return
    yield view.strategy({}, R, call=f"replicated_{_name(op)}")
    for strategy in elementwise_shards(view):
        yield view.strategy({0: strategy.inputs[0]}, *strategy.outputs, call=f"sharded_{_name(op)}")


@rule(*(f"aten.{name}{end}.default" for name in _FEATURE_DROPOUTS for end in ("", "_")))
def feature_dropout(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Whole channels dropped: shards of a channel's elements drop the same channels."""
    if not _drops(view):
        yield from elementwise_shards(view)
        yield view.strategy({0: P}, P)
        return
    yield view.strategy({}, R, call=f"replicated_{_name(op)}")
    for strategy in elementwise_shards(view):
        (shard,) = strategy.outputs
        assert isinstance(shard, Shard)
        kind = "sharded" if shard.dim < 2 else "replicated"
        yield view.strategy({0: shard}, shard, call=f"{kind}_{_name(op)}")


@rule("aten.rand_like", "aten.randn_like", "aten.randint_like", "aten.bernoulli",
      "aten.uniform.default", "aten.exponential.default")  # fmt: skip
def drawn(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Numbers for each element of a tensor: any dim."""
    yield view.strategy({}, R, call=f"replicated_{_name(op)}")
    if len(view.inputs) == 1:
        for strategy in elementwise_shards(view):
            yield view.strategy(
                {0: strategy.inputs[0]}, *strategy.outputs, call=f"sharded_{_name(op)}"
            )


def _size_argument(op: Op) -> int:
    """Position of the size: ``randint`` has one or two bounds before it."""
    if _name(op) == "randint":
        return 2 if op.target.endswith(".low") else 1
    return 2 if _name(op) == "normal" else 0


def _localize_size(op: Op, view: OpView, strategy: OpStrategy) -> Op:
    local = shard_shape(view.output.shape, strategy.outputs[0], view.ranks)
    return with_arg(op, _size_argument(op), "size", local)


@rule("aten.rand.default", "aten.randn.default", "aten.randint.default", "aten.randint.low",
      "aten.normal.float_float", localizer=_localize_size)  # fmt: skip
def created(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """A tensor of random numbers: whole, or each rank its shard."""
    yield view.strategy({}, R, call=f"replicated_{_name(op)}")
    for dim, size in enumerate(view.output.shape):
        for shard in view.shards(dim, size):
            yield view.strategy({}, shard, call=f"sharded_{_name(op)}")


@rule("aten.randperm.default")
def permutation(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """The same permutation on all ranks."""
    yield view.strategy({}, R, call="replicated_randperm")


@rule("aten.multinomial.default")
def multinomial(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Positions drawn for each row: rows."""
    yield view.strategy({}, R, call="replicated_multinomial")
    if len(view.shape()) == 2:
        yield view.strategy({0: Shard(0)}, Shard(0), call="sharded_multinomial")
