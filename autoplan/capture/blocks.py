"""Cutting the chain of operators into blocks where few tensors cross.

A cut is wanted at both ends of each item of a ``ModuleList`` or ``Sequential`` (a
transformer layer, a residual unit), as deep in the module tree as single tensors cross
every one of the ends; up to four where more must (a decoder that reads its encoder).
What lies between such items forms blocks of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from autoplan.capture.trace import Trace, TracedOp
from autoplan.ir.graph import TensorKind

__all__ = ["Segment", "cut_into_segments"]

_MAX_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Operators of one block. ``path`` is the item's FQN, or "" for what lies between items."""

    name: str
    class_name: str
    path: str
    ops: tuple[TracedOp, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut_into_segments(trace: Trace, module: nn.Module) -> list[Segment]:
    """Segments in order; together they hold each dependent operator once."""
    ops = [op for op in trace.ops if any(trace.tensors[n].dependent for n in op.outputs)]
    live = _live(ops, trace)
    ends: dict[int, None] = {}
    items = _items(ops, module, [len(names) for names in live])
    for start, stop in items:
        ends.update({start: None, stop: None})
    positions = sorted({0, len(ops), *ends})
    pairs = list(pairwise(positions))
    segments = []
    for index, (start, stop) in enumerate(pairs):
        path = items.get((start, stop), "")
        name, class_name = _names(index, len(pairs), path, module)
        segments.append(
            Segment(
                name=name,
                class_name=class_name,
                path=path,
                ops=tuple(ops[start:stop]),
                inputs=live[start],
                outputs=live[stop],
            )
        )
    return segments


def _names(index: int, count: int, path: str, module: nn.Module) -> tuple[str, str]:
    if path:
        return path, type(module.get_submodule(path)).__name__
    if count == 1:
        return "model", "Model"
    if index == 0:
        return "embedding", "Embedding"
    if index == count - 1:
        return "head", "Head"
    return f"between_{index}", "Between"


def _live(ops: list[TracedOp], trace: Trace) -> list[tuple[str, ...]]:
    """Dependent tensors that cross each position between operators, in order of production."""
    last_use: dict[str, int] = {trace.output: len(ops)}
    for index, op in enumerate(ops):
        for name in op.inputs:
            last_use[name] = max(last_use.get(name, 0), index)
    crossing: list[tuple[str, ...]] = [()]
    current: list[str] = []
    for index, op in enumerate(ops):
        current += [name for name in op.outputs if last_use.get(name, -1) > index]
        current = [name for name in current if last_use[name] > index]
        crossing.append(tuple(current))
    assert all(trace.tensors[n].kind is TensorKind.ACTIVATION for names in crossing for n in names)
    return crossing


def _items(ops: list[TracedOp], module: nn.Module, widths: list[int]) -> dict[tuple[int, int], str]:
    """Span of each item of the accepted containers; the deepest container wins.

    A container at whose ends several tensors cross counts only away from narrower ones.
    """
    spans = _spans(ops, module)
    accepted: list[str] = []
    for width in range(1, _MAX_WIDTH + 1):
        allowed = [crossing <= width for crossing in widths]
        accepted += [
            container
            for container, members in spans.items()
            if not (width > 1 and any(_nested(container, other) for other in accepted))
            and container not in accepted
            and _accepted(members, module, allowed)
        ]
    found: dict[tuple[int, int], str] = {}
    for container in sorted(accepted, key=lambda path: path.count(".") + (path != "")):
        found.update({span: item for item, span in spans[container].items()})
    return found


def _nested(one: str, other: str) -> bool:
    return (
        one == ""
        or other == ""
        or f"{one}.".startswith(f"{other}.")
        or f"{other}.".startswith(f"{one}.")
    )


def _spans(ops: list[TracedOp], module: nn.Module) -> dict[str, dict[str, tuple[int, int]]]:
    """First and last operator of each item, by container."""
    containers = _containers(module)
    spans: dict[str, dict[str, tuple[int, int]]] = {}
    for index, op in enumerate(ops):
        for item in _ancestors(op.module_path):
            container = containers.get(item)
            if container is None:
                continue
            members = spans.setdefault(container, {})
            first, _ = members.get(item, (index, index))
            members[item] = (first, index + 1)
    return spans


def _accepted(
    members: Mapping[str, tuple[int, int]], module: nn.Module, allowed: list[bool]
) -> bool:
    kinds = [type(module.get_submodule(item)) for item in members]
    if len(kinds) < 2 or len(set(kinds)) == len(kinds):
        return len(kinds) == 1 and _is_only_item(next(iter(members)), module, allowed, members)
    spans = sorted(members.values())
    apart = all(a[1] <= b[0] for a, b in pairwise(spans))
    return apart and all(allowed[start] and allowed[stop] for start, stop in spans)


def _is_only_item(
    item: str, module: nn.Module, allowed: list[bool], members: Mapping[str, tuple[int, int]]
) -> bool:
    """A list of one layer (a model at reduced depth) is cut as a longer one would be."""
    start, stop = members[item]
    layer = module.get_submodule(item)
    return allowed[start] and allowed[stop] and any(True for _ in layer.children())


def _containers(module: nn.Module) -> dict[str, str]:
    """Container FQN of each item of a list-like module."""
    found = {}
    for path, child in module.named_modules():
        if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            for key in child._modules:
                found[f"{path}.{key}" if path else key] = path
    return found


def _ancestors(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
