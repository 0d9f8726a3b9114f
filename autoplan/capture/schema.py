"""What the schemas of operators say: which arguments they write, where a keyword stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from autoplan.capture.trace import TracedOp
from autoplan.errors import CaptureError

__all__ = ["argument_position", "as_functional", "functional_form", "written_arguments"]


def written_arguments(target: Any) -> tuple[int, ...]:
    """Positions of the arguments that an operator writes into."""
    return tuple(
        index
        for index, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def argument_position(target: str, keyword: str) -> int:
    """Position of a keyword among the arguments of an operator."""
    namespace, packet, overload = target.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._schema
    return [argument.name for argument in schema.arguments].index(keyword)


def as_functional(op: TracedOp) -> TracedOp:
    """The call of the same operator that returns a new tensor; `CaptureError` without one."""
    functional = functional_form(op)
    if functional is None:
        raise CaptureError(
            f"{op.target} at {op.source} has no form that returns a new tensor",
            hint="use the operator that returns a new tensor instead",
        )
    return functional


def functional_form(op: TracedOp) -> TracedOp | None:
    """The call that returns a new tensor where this one writes; ``None`` if there is none."""
    if op.target == "aten.bernoulli_.float":
        return replace(op, target="aten.bernoulli.p")
    namespace, packet, overload = op.target.split(".")
    functional = getattr(getattr(torch.ops, namespace), packet.removesuffix("_"), None)
    if not packet.endswith("_") or functional is None or overload not in functional.overloads():
        return None
    return replace(op, target=f"{namespace}.{packet.removesuffix('_')}.{overload}")
