"""Routed experts: tokens, whole experts, or the features inside every expert.

* Tokens sharded: each rank runs all experts on its own.
* Experts sharded: each rank has all tokens and gives the addend of its experts
  (``sharded_experts``).
* Inner features sharded, columns of ``up`` and rows of ``down``: again an addend
  (``row_parallel_experts``). A gate in front of ``up`` in one weight is sharded in two blocks;
  one interleaved with it plainly, in whole pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.experts import ARGUMENTS, argument
from autoplan.ir.graph import Op, Ref
from autoplan.ir.placement import Placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules.registry import OpView, P, R, S, rule

__all__ = ["experts"]

_POSITIONS = {name: position for position, (name, _) in enumerate(ARGUMENTS)}
_TOKENS = ("hidden", "index", "weights")
_EXPERTS = ("up", "down", "gate", "up_bias", "down_bias", "gate_bias")


@rule("autoplan.experts.default")
def experts(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """See `autoplan.ir.experts` for the arguments."""

    def placed(placements: dict[str, Placement]) -> dict[int | None, Placement]:
        return {view.slot(_POSITIONS[name], name): p for name, p in placements.items()}

    yield view.strategy({}, R, call="experts")
    tokens = view.shape()[0]
    for shard in view.shards(0, tokens):
        yield view.strategy(placed(dict.fromkeys(_TOKENS, shard)), shard, call="experts")
    yield view.strategy(placed(dict.fromkeys(_EXPERTS, S(0))), P, call="sharded_experts")
    columns, rows = (2, 1) if argument(op, "transposed") is True else (1, 2)
    down = argument(op, "down")
    assert isinstance(down, Ref)
    ffn = view.shape(op.inputs.index(down.name))[rows]
    if ffn % view.ranks:
        return
    blocks = 2 if argument(op, "layout") == "concatenated" else 1
    inner: dict[str, Placement] = {
        "up": S(columns, blocks), "up_bias": S(1, blocks), "down": S(rows),
        "gate": S(columns), "gate_bias": S(1),
    }  # fmt: skip
    yield view.strategy(placed(inner), P, call="row_parallel_experts")
