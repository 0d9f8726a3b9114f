"""Segments to a `Graph`: local names, classes of equal blocks, instances."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autoplan.capture.blocks import Segment
from autoplan.capture.flop import op_flop
from autoplan.capture.numbers import binds_numbers
from autoplan.capture.saved import op_saved
from autoplan.capture.trace import Trace, TracedOp
from autoplan.ir.graph import (
    Arg,
    BlockClass,
    BlockInstance,
    Bound,
    Op,
    Ref,
    Tensor,
    TensorKind,
    is_bindable,
)

__all__ = ["Chain", "fold", "unique_shared_names"]


@dataclass(slots=True, kw_only=True)
class Chain:
    """Classes and instances, and the shared operators with the tensors they touch."""

    shared_ops: list[Op]
    shared_tensors: list[Tensor]
    classes: list[BlockClass] = field(default_factory=list)
    instances: list[BlockInstance] = field(default_factory=list)


class _Names:
    """Gives out unique Python identifiers."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def new(self, wish: str) -> str:
        """``wish`` as an identifier, numbered when it is taken."""
        stem = re.sub(r"\W", "_", wish).strip("_") or "value"
        if stem[0].isdigit() or keyword.iskeyword(stem):
            stem = f"n_{stem}"
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


def unique_shared_names(trace: Trace) -> dict[str, str]:
    """Names of the batch and of all tensors that shared operators read or write."""
    names = _Names()
    local = {name: names.new(name) for name in trace.inputs}
    for op in _shared_ops(trace):
        for read in op.inputs:
            if read not in local:
                local[read] = names.new(trace.tensors[read].fqn)
        _name_outputs(op, op.module_path, names, local)
    return local


def fold(trace: Trace, segments: list[Segment]) -> Chain:
    """Chain of blocks in which equal segments share a class.

    Numbers that may differ are bound in every block; `numbers.settled` puts equal ones back.
    """
    shared = unique_shared_names(trace)
    chain = Chain(
        shared_ops=[
            _local_op(op, shared, trace, op.module_path, op.source) for op in _shared_ops(trace)
        ],
        shared_tensors=[_local_tensor(name, shared, trace) for name in shared],
    )
    seen: dict[BlockClass, int] = {}
    class_names = _Names()
    for segment in segments:
        block, parameters, buffers, numbers = _block(segment, trace, shared)
        unused: tuple[int, ...] = ()
        if block not in seen and chain.instances:
            longer, unused = _passing(segment, chain.classes[chain.instances[-1].block_class])
            alike, *_ = _block(longer, trace, shared)
            block, unused = (alike, unused) if alike in seen else (block, ())
        if block not in seen:
            seen[block] = len(chain.classes)
            chain.classes.append(replace(block, name=class_names.new(segment.class_name)))
        chain.instances.append(
            BlockInstance(
                name=segment.name,
                block_class=seen[block],
                parameters=parameters,
                buffers=buffers,
                unused=unused,
                numbers=numbers,
            )
        )
    return chain


def _passing(segment: Segment, before: BlockClass) -> tuple[Segment, tuple[int, ...]]:
    """The segment with the inputs that the block before passes through as outputs too.

    With the positions of those that end here: the last of several equal layers hands on less.
    """
    if len(before.inputs) != len(segment.inputs):
        return segment, ()
    produced = [name for name in segment.outputs if name not in segment.inputs]
    outputs: list[str] = []
    for name in before.outputs:
        if name in before.inputs:
            outputs.append(segment.inputs[before.inputs.index(name)])
        elif produced:
            outputs.append(produced.pop(0))
    if produced or [name for name in outputs if name in segment.outputs] != [*segment.outputs]:
        return segment, ()
    ended = tuple(k for k, name in enumerate(outputs) if name not in segment.outputs)
    return replace(segment, outputs=tuple(outputs)), ended


def _shared_ops(trace: Trace) -> list[TracedOp]:
    return [op for op in trace.ops if not any(trace.tensors[n].dependent for n in op.outputs)]


def _block(
    segment: Segment, trace: Trace, shared: Mapping[str, str]
) -> tuple[BlockClass, tuple[str, ...], tuple[str, ...], tuple[float, ...]]:
    """Class of a segment under an empty name, and the FQNs and numbers that it binds."""
    read = dict.fromkeys(name for op in segment.ops for name in op.inputs)
    used = {name: shared[name] for name in read if name in shared}
    used |= {name: shared[name] for name in segment.outputs if name in shared}
    names = _Names(used.values())
    local: dict[str, str] = {}
    for index, name in enumerate(segment.inputs):
        local[name] = names.new("x" if len(segment.inputs) == 1 else f"x_{index}")
    bound: dict[TensorKind, list[str]] = {TensorKind.PARAMETER: [], TensorKind.BUFFER: []}
    for name in read:
        tensor = trace.tensors[name]
        if tensor.kind in bound and name not in used:
            local[name] = names.new(segment.local(tensor.fqn))
            bound[tensor.kind].append(name)
    for op in segment.ops:
        _name_outputs(op, segment.local(op.module_path), names, local)
    everything = {**used, **local}
    boundary = set(segment.inputs)
    numbers: list[float] = []
    block = BlockClass(
        name="",
        ops=tuple(
            _local_op(op, everything, trace, segment.local(op.module_path), source, numbers)
            for op, source in zip(
                segment.ops, segment.sources or [op.source for op in segment.ops], strict=True
            )
        ),
        tensors=tuple(
            _local_tensor(name, everything, trace, boundary=boundary, shared=set(used))
            for name in everything
        ),
        inputs=tuple(local[name] for name in segment.inputs),
        outputs=tuple(everything[name] for name in segment.outputs),
        parameters=tuple(local[name] for name in bound[TensorKind.PARAMETER]),
        buffers=tuple(local[name] for name in bound[TensorKind.BUFFER]),
        shared=tuple(used.values()),
    )
    fqns = {kind: tuple(trace.tensors[name].fqn for name in bound[kind]) for kind in bound}
    return block, fqns[TensorKind.PARAMETER], fqns[TensorKind.BUFFER], tuple(numbers)


def _name_outputs(op: TracedOp, path: str, names: _Names, local: dict[str, str]) -> None:
    tail = path.rpartition(".")[2]
    packet = op.target.split(".")[1].strip("_")
    wish = f"{tail}_{packet}" if tail and not tail.isdigit() else packet
    if len(op.outputs) == 1:
        local[op.outputs[0]] = names.new(wish)
        return
    stem = names.new(wish)
    for index, name in enumerate(op.outputs):
        local[name] = names.new(f"{stem}_{index}")


def _local_op(
    op: TracedOp,
    local: Mapping[str, str],
    trace: Trace,
    module_path: str,
    source: str,
    numbers: list[float] | None = None,
) -> Op:
    """The operator with local names; numbers that may be bound are, and go into ``numbers``."""
    bound = numbers if binds_numbers(op.packet) else None
    flop, flop_backward = op_flop(op, trace.tensors)
    saved, extra = op_saved(op, trace.tensors)
    outputs = tuple(local[name] for name in op.outputs)
    name = outputs[0] if len(outputs) == 1 else outputs[0].rpartition("_")[0]
    return Op(
        name=name,
        target=op.target,
        args=tuple(_local_arg(arg, local, bound) for arg in op.args),
        kwargs=tuple((key, _local_arg(arg, local, bound)) for key, arg in op.kwargs),
        outputs=outputs,
        module_path=module_path,
        source=source,
        flop=flop,
        flop_backward=flop_backward,
        saved=tuple(local[item] for item in saved),
        saved_extra=extra,
        mask=op.mask,
    )


def _local_arg(arg: Arg, local: Mapping[str, str], numbers: list[float] | None = None) -> Arg:
    if numbers is not None and isinstance(arg, float) and is_bindable(arg):
        numbers.append(arg)
        return Bound(len(numbers) - 1)
    if isinstance(arg, Ref):
        return Ref(local[arg.name])
    if isinstance(arg, tuple):
        return tuple(_local_arg(item, local) for item in arg)
    return arg


def _local_tensor(
    name: str,
    local: Mapping[str, str],
    trace: Trace,
    *,
    boundary: set[str] | None = None,
    shared: set[str] | None = None,
) -> Tensor:
    tensor = trace.tensors[name]
    kind = tensor.kind
    is_shared = name in shared if shared is not None else kind is TensorKind.ACTIVATION
    if boundary is not None and name in boundary:
        kind = TensorKind.BOUNDARY
    elif is_shared and kind is not TensorKind.INPUT:
        kind = TensorKind.SHARED
    # A view of what an earlier block holds has no base here.
    base = local.get(tensor.base, local[name])
    if kind is TensorKind.BOUNDARY:
        base = local[name]
    return Tensor(
        name=local[name],
        shape=tensor.shape,
        dtype=tensor.dtype,
        kind=kind,
        requires_grad=tensor.requires_grad,
        base=base,
    )
