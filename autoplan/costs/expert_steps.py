"""Routed experts as the four operators that `runtime.experts` runs one after another."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.costs.experts import experts_products, wide
from autoplan.costs.passes import Step, Storage
from autoplan.ir.experts import EXPERTS, ExpertsRegion, argument
from autoplan.ir.graph import BlockClass, Op, Ref, dtype_size

__all__ = ["expert_steps"]


def expert_steps(
    op: Op,
    block: BlockClass,
    region: ExpertsRegion,
    held: Mapping[str, Storage],
    size: dict[Storage, int],
) -> list[Step]:
    """Steps of an operator whose tensors are in ``held``; ``size`` gets their own storages.

    The rows go through the first weights, the activation and the last weight, and are summed
    by token.
    """
    assert op.target == EXPERTS
    r, number = region, dtype_size(region.dtype)
    rows, features = r.rows * r.hidden * number, r.rows * r.ffn * number
    tokens_rows = r.tokens * r.top_k * r.hidden * number
    widened = wide(r) // number
    into_up = r.hidden_grad or r.up_grad
    into_down = into_up or r.weights_grad
    learns = into_down or r.down_grad
    inner, active, out = ((op.name, name) for name in ("inner", "active", "out"))
    size[inner], size[out] = experts_products(region)
    size[active] = features

    def named(*arguments: str) -> tuple[str, ...]:
        found = (argument(op, name) for name in arguments)
        return tuple(ref.name for ref in found if isinstance(ref, Ref))

    def learnt(*arguments: str) -> tuple[str, ...]:
        return tuple(name for name in named(*arguments) if block.tensor(name).requires_grad)

    (hidden,), (result,) = named("hidden"), op.outputs
    firsts = ("gate", "up", "gate_bias", "up_bias")
    lasts = ("down", "down_bias")
    both = 2 * rows if r.layout == "separate" else rows  # gradients of rows, one each weight
    # The halves of a product have gradients that are joined besides.
    joined = r.projected * r.rows * number if r.layout in ("concatenated", "interleaved") else 0
    # Weighting compares rows in float32.
    compared = features if number >= 4 else 3 * features * 4 // number
    expand = Step(
        reads=tuple(held[name] for name in named("hidden", "index", *firsts)),
        writes=(inner,),
        saved=frozenset({held[hidden]} if r.up_grad else ()),
        extra=8 * r.rows * (1 + r.biased) + 4 * r.num_experts if learns else 0,
        forward=rows,
        backward=max(both, rows + tokens_rows) if r.hidden_grad else rows,
        gradients=(inner, *((held[hidden],) if r.hidden_grad else ())) if into_up else (),
        weights=learnt(*firsts),
    )
    activate = Step(
        reads=(inner,),
        writes=(active,),
        saved=frozenset({inner} if into_up else ()),
        forward=features if r.gated else 0,
        backward=(2 if r.gated else 1) * features + joined,
        gradients=(active, inner) if into_up else (),
    )
    counted = dtype_size(r.weight_dtype) * r.rows
    reduce = Step(
        reads=(active, *(held[name] for name in named("weights", *lasts))),
        writes=(out,),
        saved=frozenset({active} if r.down_grad or r.weights_grad else ()),
        extra=counted if into_up or r.down_grad else 0,
        forward=rows,
        backward=max(features + compared if r.weights_grad else features, rows),
        gradients=(
            (out, *((active,) if into_up else ()), *(held[name] for name in learnt("weights")))
            if learns
            else ()
        ),
        weights=learnt(*lasts),
    )
    combine = Step(
        reads=(out,),
        writes=(held[result],),
        forward=tokens_rows * widened,
        gradients=(held[result], out) if learns else (),
    )
    return [expand, activate, reduce, combine]
