"""Masks of attention by their values: which are causal, a window, chunks, or nothing.

A mask that depends on no input and no parameter is computed here, on the CPU, at the traced
sizes. One that hides nothing is dropped, and an exactly causal one becomes the flag of the
operator, so that the fused kernel runs. Other kinds keep their mask and are named.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from autoplan.capture.trace import Trace, TracedOp, TracedTensor
from autoplan.ir.attention import ATTENTION_TARGET
from autoplan.ir.graph import Arg, Buffer, Const, Ref, TensorKind

__all__ = ["mask_kind", "recognise_masks"]

_MASK = 3
# Rows times columns of the largest mask that is computed: 8192 positions.
_MAX_POSITIONS = 2**26
_ROWS = 256
Shown = Callable[[Tensor, Tensor], Tensor]
_RANDOM = ("rand", "bernoulli", "dropout", "normal", "multinomial", "empty")


def mask_kind(mask: Tensor) -> str:
    """Kind of a boolean (true: attend) or additive mask ``[..., queries, keys]``.

    ``none``; ``causal`` (key <= query); ``sliding(w)``: causal and the last ``w`` keys;
    ``chunked(c)``: causal within chunks of ``c``; ``block(c)``: the same without order;
    ``local(w)``: keys at most ``w`` away on either side; ``prefix(p)``: causal, and the
    first ``p`` keys for all; ``bias``: added numbers; ``explicit``: anything else.
    """
    plane = _plane(mask)
    if plane is None:
        return "explicit" if mask.dtype == torch.bool else "bias"
    if plane.dtype != torch.bool:
        shown = plane == 0
        hidden = plane <= torch.finfo(plane.dtype).min / 2
        if not bool((shown | hidden).all()):
            return "bias"
        plane = shown
        if not bool(plane.any(dim=-1).all()):
            return "explicit"  # a row of one finite number attends to everything
    return _plane_kind(plane)


def recognise_masks(trace: Trace, buffers: Mapping[str, Buffer]) -> Trace:
    """The trace with the kind of each attention's mask, and without masks that need none.

    Boolean masks that remain become additive ones, once for all layers: the operator would
    convert its mask anew in each, and keep the result for backward.
    """
    values = _Values(trace, buffers)
    tensors, ops = dict(trace.tensors), []
    additive: dict[tuple[str, str], str] = {}
    for op in trace.ops:
        name = _mask_of(op)
        if name is None:
            ops.append(op)
            continue
        op = _with_kind(op, name, trace, values)
        mask, dtype = tensors[name], tensors[op.inputs[0]].dtype
        if _mask_of(op) is not None and mask.dtype == "bool" and not mask.dependent:
            if (name, dtype) not in additive:
                is_plane = op.mask != "explicit"
                made, result = _additive(op, name, dtype, tensors, is_plane=is_plane)
                ops += made
                additive[name, dtype] = result
            op = _with_mask(op, additive[name, dtype])
        ops.append(op)
    return replace(trace, ops=ops, tensors=tensors)


def _mask_of(op: TracedOp) -> str | None:
    if op.target != ATTENTION_TARGET:
        return None
    mask = op.args[_MASK] if len(op.args) > _MASK else dict(op.kwargs).get("attn_mask")
    return mask.name if isinstance(mask, Ref) else None


def _with_kind(op: TracedOp, name: str, trace: Trace, values: _Values) -> TracedOp:
    tensor = trace.tensors[name]
    if tensor.dependent:
        return replace(op, mask="bias" if tensor.dtype != "bool" else "explicit")
    if math.prod(tensor.shape[-2:]) > _MAX_POSITIONS:
        return replace(op, mask="explicit")
    kind = values.kind(name)
    queries = trace.tensors[op.inputs[0]].shape[-2]
    if kind == "none" or (kind == "causal" and queries > 1):
        return _without_mask(op, is_causal=kind == "causal")
    return replace(op, mask=kind)


def _with_mask(op: TracedOp, name: str) -> TracedOp:
    if len(op.args) > _MASK:
        return replace(op, args=(*op.args[:_MASK], Ref(name), *op.args[_MASK + 1 :]))
    kwargs = tuple((k, Ref(name) if k == "attn_mask" else arg) for k, arg in op.kwargs)
    return replace(op, kwargs=kwargs)


def _additive(
    op: TracedOp, name: str, dtype: str, tensors: dict[str, TracedTensor], *, is_plane: bool
) -> tuple[list[TracedOp], str]:
    """Operators that make the additive form of a boolean mask, and its name.

    ``is_plane``: samples and heads have the same mask, so one is enough.
    """
    made: list[TracedOp] = []
    shape = tensors[name].shape

    def add(packet: str, suffix: str, kind: str, *args: Arg) -> str:
        result = f"{name}.{dtype}.{suffix}"
        base = tensors[name].base if packet == "slice.Tensor" else result
        tensors[result] = replace(
            tensors[name], shape=shape, dtype=kind, kind=TensorKind.ACTIVATION, base=base, fqn=""
        )
        target = f"aten.{packet}"
        made.append(replace(op, target=target, args=args, kwargs=(), outputs=(result,), mask=""))
        return result

    source = name
    for dim in range(len(shape) - 2 if is_plane else 0):
        if shape[dim] > 1:
            shape = (*shape[:dim], 1, *shape[dim + 1 :])
            source = add("slice.Tensor", f"slice{dim}", "bool", Ref(source), dim, 0, 1)
    hidden = add("logical_not.default", "hidden", "bool", Ref(source))
    wide = add("to.dtype", "wide", dtype, Ref(hidden), Const("dtype", dtype))
    filled = add("masked_fill.Scalar", "filled", dtype, Ref(wide), Ref(hidden), -math.inf)
    return made, filled


def _without_mask(op: TracedOp, *, is_causal: bool) -> TracedOp:
    dropout = op.args[4] if len(op.args) > 4 else dict(op.kwargs).get("dropout_p", 0.0)
    kept = tuple(p for p in op.kwargs if p[0] not in {"attn_mask", "dropout_p", "is_causal"})
    return replace(op, args=(*op.args[:_MASK], None, dropout, is_causal), kwargs=kept)


class _Values:
    """Values of tensors that depend on neither inputs nor parameters, computed on demand."""

    def __init__(self, trace: Trace, buffers: Mapping[str, Buffer]) -> None:
        self._trace = trace
        self._buffers = buffers
        self._makers = {name: op for op in trace.ops for name in op.outputs}
        self._kinds: dict[str, str] = {}

    def kind(self, name: str) -> str:
        """Kind of the mask ``name``; ``explicit`` or ``bias`` when its value is not known."""
        if name not in self._kinds:
            value = self._value(name, {}) if self._is_known(name, {}) else None
            is_bool = self._trace.tensors[name].dtype == "bool"
            unknown = "explicit" if is_bool else "bias"
            self._kinds[name] = unknown if value is None else mask_kind(value)
        return self._kinds[name]

    def _is_known(self, name: str, seen: dict[str, bool]) -> bool:
        if name not in seen:
            tensor, maker = self._trace.tensors[name], self._makers.get(name)
            if tensor.kind is TensorKind.BUFFER:
                fqn = tensor.fqn
                seen[name] = fqn in self._buffers or fqn in self._trace.constants
            elif maker is None or maker.packet.startswith(_RANDOM):
                seen[name] = False
            else:
                small = math.prod(tensor.shape) <= 4 * _MAX_POSITIONS
                seen[name] = small and all(self._is_known(item, seen) for item in maker.inputs)
        return seen[name]

    def _value(self, name: str, done: dict[str, Tensor]) -> Tensor:
        if name in done:
            return done[name]
        maker = self._makers.get(name)
        if maker is None:
            tensor = self._trace.tensors[name]
            constant = self._trace.constants.get(tensor.fqn)
            found = constant if constant is not None else _decoded(self._buffers[tensor.fqn])
            done[name] = found.detach().cpu()
            return done[name]
        for item in maker.inputs:
            self._value(item, done)
        namespace, packet, overload = maker.target.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        with torch.no_grad():
            result = function(
                *(_evaluated(arg, done) for arg in maker.args),
                **{key: _evaluated(arg, done) for key, arg in maker.kwargs},
            )
        outputs = result if isinstance(result, tuple | list) else [result]
        done.update(zip(maker.outputs, outputs, strict=True))
        return done[name]


def _evaluated(arg: Arg, values: Mapping[str, Tensor]) -> object:
    match arg:
        case Ref(name):
            return values[name]
        case Const("device", _):
            return torch.device("cpu")
        case Const(_, name):
            return getattr(torch, name)
        case tuple():
            return [_evaluated(item, values) for item in arg]
    return arg


def _decoded(buffer: Buffer) -> Tensor:
    raw = bytearray(zlib.decompress(base64.b64decode(buffer.data)))
    flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, buffer.dtype)).reshape(buffer.shape)


def _plane(mask: Tensor) -> Tensor | None:
    """The mask of one sample and head; ``None`` if they differ between samples or heads."""
    if mask.dim() < 2:
        mask = mask.reshape(1, -1)
    while mask.dim() > 2:
        first = mask[0]
        if mask.stride(0) != 0 and not all(torch.equal(first, other) for other in mask[1:]):
            return None
        mask = first
    return mask


def _plane_kind(plane: Tensor) -> str:
    queries = len(plane)
    first, last = int(plane[0].sum()), int(plane[-1].sum())
    if last == 0 or first == 0:
        return "explicit"
    hidden = torch.nonzero(~plane[:, 0])
    chunk = int(hidden[0]) if len(hidden) else queries
    away = first - 1
    candidates: tuple[tuple[str, Shown], ...] = (
        ("none", lambda row, column: (column >= 0) & (row >= 0)),
        ("causal", lambda row, column: column <= row),
        (f"sliding({last})", lambda row, column: (column <= row) & (column > row - last)),
        (f"local({away})", lambda row, column: (column - row).abs() <= away),
        (f"prefix({first})", lambda row, column: (column <= row) | (column < first)),
        (f"block({first})", lambda row, column: column // first == row // first),
        (
            f"chunked({chunk})",
            lambda row, column: (column <= row) & (column // max(chunk, 1) == row // max(chunk, 1)),
        ),
    )
    return next((kind for kind, shown in candidates if _equals(plane, shown)), "explicit")


def _equals(plane: Tensor, shown: Shown) -> bool:
    """Whether each element is what ``shown`` says; some rows at a time, to stop early."""
    column = torch.arange(plane.shape[1], dtype=torch.int32)[None, :]
    rows = torch.arange(plane.shape[0], dtype=torch.int32)[:, None]
    starts = range(0, len(plane), _ROWS)
    blocks = (slice(start, start + _ROWS) for start in starts)
    return all(torch.equal(plane[part], shown(rows[part], column)) for part in blocks)
