"""Cutting the chain of operators into blocks where few tensors cross.

A cut is wanted at both ends of each item of a ``ModuleList`` or ``Sequential`` (a
transformer layer, a residual unit), as deep in the module tree as single tensors cross
every one of the ends; up to four where more must (a decoder that reads its encoder).
What lies between such items forms blocks of its own, cut further where the same operators
repeat: layers that are attributes, or one function called in a loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from posixpath import commonpath

from torch import nn

from autoplan.capture.flop import op_flop
from autoplan.capture.repeats import Repeat, Step, find_repeats
from autoplan.capture.trace import Trace, TracedOp
from autoplan.ir.graph import Arg, Ref, TensorKind, dtype_size

__all__ = ["Segment", "cut_into_segments"]

# A U-Net hands on one tensor a residual unit, to where it comes up again.
_MAX_WIDTH = 32
_MAX_REPEAT_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Operators of one block. ``path`` is the item's FQN, or "" for what lies between items.

    ``renamed`` gives FQNs and module paths the names they share with the repeats of the
    block, and ``sources`` the places of its operators that are shown for all.
    """

    name: str
    class_name: str
    path: str
    ops: tuple[TracedOp, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def local(self, fqn: str) -> str:
        """FQN or module path as seen from the block."""
        if fqn in self.renamed:
            return self.renamed[fqn]
        inside = self.path and fqn.startswith(self.path)
        return fqn[len(self.path) :].lstrip(".") if inside else fqn


def cut_into_segments(trace: Trace, module: nn.Module) -> list[Segment]:
    """Segments in order; together they hold each dependent operator once."""
    ops = [op for op in trace.ops if any(trace.tensors[n].dependent for n in op.outputs)]
    live = _live(ops, trace)
    ends: dict[int, None] = {}
    items = _items(ops, module, [len(names) for names in live])
    for start, stop in items:
        ends.update({start: None, stop: None})
    groups: dict[int, Repeat] = {}
    steps = _steps(ops, trace)
    for start, stop in list(pairwise(sorted({0, len(ops), *ends}))):
        if not items.get((start, stop)):
            for repeat in _repeats(steps, live, start, stop):
                groups.update({start: repeat for start in _starts(repeat)})
                ends.update(dict.fromkeys([*_starts(repeat), repeat.stop]))
    pairs = list(pairwise(sorted({0, len(ops), *ends})))
    shared = _shared_names(ops, trace, set(groups.values()))
    crossing = {start: _ordered(live[start], live[stop]) for start, stop in pairs}
    crossing[len(ops)] = live[len(ops)]
    segments = []
    for index, (start, stop) in enumerate(pairs):
        path = items.get((start, stop), "")
        name, class_name = _names(index, len(pairs), path, module)
        segment = Segment(
            name=name,
            class_name=class_name,
            path=path,
            ops=tuple(ops[start:stop]),
            inputs=crossing[start],
            outputs=crossing[stop],
        )
        if start in groups:
            segment = _as_unit(segment, f"block_{index}", shared[start], module)
        segments.append(segment)
    return segments


def _ordered(names: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """What passes through the next block first: layers that read one memory are then alike."""
    return tuple(sorted(names, key=lambda name: name not in after))


def _starts(repeat: Repeat) -> range:
    return range(repeat.start, repeat.stop, repeat.period)


def _repeats(
    steps: Sequence[Step], live: Sequence[tuple[str, ...]], start: int, stop: int
) -> Iterator[Repeat]:
    """Repeats among the operators between two positions, with a first unit wired otherwise."""
    inside = [
        replace(step, links=tuple(_moved(link, start) for link in step.links))
        for step in steps[start:stop]
    ]
    widths = [len(names) for names in live[start : stop + 1]]
    last = 0
    for found in find_repeats(inside, widths, max_width=_MAX_REPEAT_WIDTH):
        first = found.start - found.period
        alike = (
            first >= last
            and widths[first] <= _MAX_REPEAT_WIDTH
            and all(
                inside[first + index].token == inside[found.start + index].token
                for index in range(found.period)
            )
        )
        begin, count = (first, found.count + 1) if alike else (found.start, found.count)
        yield Repeat(start + begin, found.period, count)
        last = found.stop


def _moved(link: int, start: int) -> int:
    """Position relative to ``start``; those before it become negative, each its own number."""
    if link >= start:
        return link - start
    return link if link < 0 else -(2**40) - link


def _steps(ops: Sequence[TracedOp], trace: Trace) -> list[Step]:
    """Operators as `find_repeats` compares them."""
    tokens: dict[object, int] = {}
    outside: dict[str, int] = {}
    produced: dict[str, int] = {}
    steps = []
    for index, op in enumerate(ops):
        links = tuple(
            produced[name] if name in produced else -1 - outside.setdefault(name, len(outside))
            for name in op.inputs
            if trace.tensors[name].kind is not TensorKind.PARAMETER
            and trace.tensors[name].kind is not TensorKind.BUFFER
        )
        made = [trace.tensors[name] for name in op.outputs]
        token = (
            op.target,
            _described(op.args, trace),
            tuple((key, _described(arg, trace)) for key, arg in op.kwargs),
            tuple((t.shape, t.dtype, t.requires_grad) for t in made),
        )
        work = op_flop(op, trace.tensors)[0] + sum(_bytes(name, trace) for name in op.outputs)
        owned = any(trace.tensors[name].kind is TensorKind.PARAMETER for name in op.inputs)
        steps.append(Step(tokens.setdefault(token, len(tokens)), links, work, owned))
        produced.update(dict.fromkeys(op.outputs, index))
    return steps


def _described(arg: Arg, trace: Trace) -> object:
    if isinstance(arg, Ref):
        tensor = trace.tensors[arg.name]
        return tensor.shape, tensor.dtype, tensor.kind, tensor.requires_grad
    if isinstance(arg, tuple):
        return tuple(_described(item, trace) for item in arg)
    return type(arg), arg


def _bytes(name: str, trace: Trace) -> int:
    tensor = trace.tensors[name]
    return math.prod(tensor.shape) * dtype_size(tensor.dtype)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a unit has in common with the others; ``path`` is its own module, if it is one."""

    path: str
    renamed: dict[str, str]
    sources: tuple[str, ...]


def _as_unit(segment: Segment, name: str, shared: _Shared, module: nn.Module) -> Segment:
    kind = type(module.get_submodule(shared.path)).__name__ if shared.path else "Block"
    return replace(
        segment,
        name=shared.path or name,
        class_name=kind,
        renamed=shared.renamed,
        sources=shared.sources,
    )


def _shared_names(
    ops: Sequence[TracedOp], trace: Trace, repeats: set[Repeat]
) -> dict[int, _Shared]:
    """For the start of each unit, what `Segment` says of names common to the repeats."""
    found: dict[int, _Shared] = {}
    for repeat in repeats:
        units = [ops[start : start + repeat.period] for start in _starts(repeat)]
        sources = tuple(op.source for op in units[0])
        renamed: list[dict[str, str]] = [{} for _ in units]
        for row in zip(*(_paths(unit, trace) for unit in units), strict=True):
            for names, path in zip(renamed, row, strict=True):
                names.setdefault(path, _common(row))
        inside = [commonpath([op.module_path.replace(".", "/") for op in unit]) for unit in units]
        apart = all(inside) and len(set(inside)) == len(inside)
        for start, path, names in zip(_starts(repeat), inside, renamed, strict=True):
            found[start] = _Shared(path.replace("/", ".") if apart else "", names, sources)
    return found


def _paths(ops: Sequence[TracedOp], trace: Trace) -> list[str]:
    """Module paths and FQNs in the order in which operators name them."""
    found = []
    for op in ops:
        found.append(op.module_path)
        found += [trace.tensors[name].fqn for name in op.inputs]
    return found


def _common(paths: Sequence[str]) -> str:
    """What the paths have in common: ``layers.3.w`` and ``layers.4.w`` share ``layers.w``."""
    parts = [path.split(".") for path in paths]
    if len(set(map(len, parts))) > 1:
        return "value" if all(paths) else ""
    common = []
    for column in zip(*parts, strict=True):
        stems = {re.sub(r"\d+", "", part).strip("_") for part in column}
        common += [column[0]] if len(set(column)) == 1 else list(stems) if len(stems) == 1 else []
    return ".".join(filter(None, common))


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
