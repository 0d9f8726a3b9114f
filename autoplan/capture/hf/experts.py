"""Routed experts of transformers' models as one operator, whatever the family.

Families differ in how a gate is laid out and what is applied to it, often in a method of their
own. What it is, is found by comparing that method with the named activations on numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.capture.build import BuiltModule
from autoplan.capture.experts import activate, experts
from autoplan.ir.experts import ACTIVATIONS

__all__ = ["Gating", "expert_settings", "gating_of", "with_experts"]

_NAME = "autoplan"
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_GATING = "_autoplan_gating"
_TOLERANCE = 1e-6  # some families compute in float32 whatever the input


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """What happens between the two products of an expert."""

    activation: str
    layout: str
    alpha: float = 1.0
    limit: float = 0.0


def expert_settings(config: Any) -> str | None:
    """Name of transformers' implementation to trace, None for a model without experts.

    The eager loop over experts depends on data.
    """
    if not any(getattr(config, name, None) for name in _COUNTS):
        return None
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    if _NAME not in ALL_EXPERTS_FUNCTIONS:
        ALL_EXPERTS_FUNCTIONS.register(_NAME, _forward)
    return _NAME


def with_experts(built: BuiltModule) -> BuiltModule:
    """The module with the gating of its experts found; a note names those not recognised."""
    unknown: dict[str, str] = {}
    for path, child in built.module.named_modules():
        if not hasattr(child, "_is_expert_parallel"):
            continue
        gating = gating_of(child)
        if gating is None:
            unknown.setdefault(type(child).__name__, path)
        else:
            setattr(child, _GATING, gating)
    notes = [
        f"{path} ({name}) stays several operators, which can't be divided by experts: what it "
        "does between its two products is no named activation; autoplan.register_experts"
        f"({name}) makes it one operator"
        for name, path in unknown.items()
    ]
    return replace(built, notes=(*built.notes, *notes))


def gating_of(module: Any) -> Gating | None:
    """Gating of transformers' module of experts, None if it is none of the known ones."""
    if module.has_post_expert_norm:
        return None
    act = getattr(module, "act_fn", None)
    if isinstance(act, nn.Module) and any(True for _ in act.parameters()):
        return None
    numbers = [
        float(value)
        for value in vars(module).values()
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    ]
    x = _probe(numbers)
    with torch.no_grad():
        try:
            wanted = module._apply_gate(x) if module.has_gate else module.act_fn(x)
        except (RuntimeError, TypeError, AttributeError):
            return None  # it needs more than the projected rows
    return next((g for g in _candidates(module, numbers) if _gives(g, x, wanted)), None)


def _probe(numbers: list[float]) -> Tensor:
    """Rows of 16 features on each scale where something may happen."""
    random = torch.Generator().manual_seed(0)
    scales = [0.5, 3.0, *(2.0 * value for value in dict.fromkeys(numbers))]
    rows = [torch.randn(64, 16, generator=random, dtype=torch.float64) * s for s in scales]
    return torch.cat(rows)


def _candidates(module: Any, numbers: list[float]) -> Iterator[Gating]:
    if not module.has_gate:
        yield from (Gating(activation=a, layout="plain") for a in ACTIVATIONS if a != "swiglu_oai")
        return
    layouts = ["concatenated", "interleaved"]
    for limit, layout in itertools.product([0.0, *numbers], layouts):
        for name in ACTIVATIONS:
            for alpha in [1.0, *numbers] if name == "swiglu_oai" else [1.0]:
                yield Gating(activation=name, layout=layout, alpha=alpha, limit=limit)


def _gives(gating: Gating, x: Tensor, wanted: Tensor) -> bool:
    if gating.layout == "plain":
        found = activate(gating.activation, x)
    else:
        halves = x.chunk(2, -1) if gating.layout == "concatenated" else (x[:, ::2], x[:, 1::2])
        found = activate(gating.activation, *halves, alpha=gating.alpha, limit=gating.limit)
    if found.shape != wanted.shape:
        return False
    return torch.allclose(found, wanted.to(found.dtype), rtol=_TOLERANCE, atol=_TOLERANCE)


def _forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Forward of a module of experts, in the form that transformers dispatches to."""
    gating: Gating | None = getattr(self, _GATING, None)
    if gating is None:
        from transformers.integrations.moe import grouped_mm_experts_forward

        result: Tensor = grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
        return result
    up = "gate_up_proj" if self.has_gate else "up_proj"
    return experts(
        hidden_states,
        top_k_index,
        top_k_weights,
        getattr(self, up),
        self.down_proj,
        up_bias=getattr(self, f"{up}_bias") if self.has_bias else None,
        down_bias=self.down_proj_bias if self.has_bias else None,
        activation=gating.activation,
        layout=gating.layout,
        transposed=self.is_transposed,
        alpha=gating.alpha,
        limit=gating.limit,
    )
