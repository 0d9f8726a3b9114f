"""In-place writes into slices, as operators that return the whole tensor.

``x[:, 1:] = y`` becomes ``x = slice_scatter(x, y, 1, 1)``, and writes through several slices
or selections become as many scatters, innermost first. Scatters along one dim that replace the
whole tensor are one ``cat``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoplan.capture.trace import Trace, TracedOp, TracedTensor
from autoplan.ir.graph import Arg, Const, Ref, TensorKind

__all__ = ["Written", "write_through"]

_FILLS = {"fill_", "zero_"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Operators that stand for one write: ``base`` becomes ``result``, its slice ``view``."""

    base: str
    result: str
    view: str
    ops: tuple[TracedOp, ...]
    tensors: dict[str, TracedTensor]


@dataclass(frozen=True, slots=True)
class _Slice:
    dim: int
    start: int
    end: int
    step: int


def write_through(trace: Trace, op: TracedOp, functional: TracedOp | None) -> Written | None:
    """The write ``op`` into slices of a tensor that forward made; None if it is no such write.

    ``functional`` is the form of ``op`` that returns its result, if there is one.
    """
    views = _views(trace, op.inputs[0])
    base = views[-1].inputs[0] if views else ""
    if not views or trace.tensors[base].kind is not TensorKind.ACTIVATION:
        return None
    if trace.tensors[base].base != base:
        return None
    build = _Builder(trace, op)
    value = build.value(functional)
    if value is None:
        return None
    for view in views:
        value = build.scatter(view, value)
    result = value
    for view in reversed(views):
        value = build.view(view, value)
    return Written(
        base=base, result=result, view=value, ops=tuple(build.ops), tensors=build.tensors
    )


def _views(trace: Trace, name: str) -> list[TracedOp]:
    """Slices and selections from the tensor ``name`` up to the tensor that holds it."""
    makers = {output: op for op in trace.ops for output in op.outputs}
    found = []
    while name in makers and makers[name].packet in {"slice", "select"}:
        found.append(makers[name])
        name = makers[name].inputs[0]
    return found


class _Builder:
    def __init__(self, trace: Trace, op: TracedOp) -> None:
        self.trace = trace
        self.op = op
        self.ops: list[TracedOp] = []
        self.tensors: dict[str, TracedTensor] = {}

    def value(self, functional: TracedOp | None) -> str | None:
        """What the written slice holds afterwards."""
        op, target = self.op, self.op.inputs[0]
        like = self._tensor(target)
        if op.packet == "copy_" and isinstance(op.args[1], Ref):
            name = op.args[1].name
            if self._tensor(name).dtype != like.dtype:
                cast = Const("dtype", like.dtype)
                name = self._add("to.dtype", (Ref(name), cast), self._tensor(name).shape, like)
            if self._tensor(name).shape != like.shape:
                name = self._add("expand.default", (Ref(name), like.shape), like.shape, like)
            return name
        if op.packet in _FILLS and not any(isinstance(arg, Ref) for arg in op.args[1:]):
            number = op.args[1] if op.packet == "fill_" else 0
            return self._add("full_like.default", (Ref(target), number), like.shape, like)
        if functional is None:
            return None
        return self._add(functional.target.removeprefix("aten."), functional.args, like.shape, like)

    def scatter(self, view: TracedOp, value: str) -> str:
        """The tensor that ``view`` cuts, with ``value`` in place of the cut."""
        whole = view.inputs[0]
        like = self._tensor(whole)
        cut = _cut(view, like.shape)
        if view.packet == "select":
            shape = self._tensor(value).shape
            unsqueezed = (*shape[: cut.dim], 1, *shape[cut.dim :])
            value = self._add("unsqueeze.default", (Ref(value), cut.dim), unsqueezed, like)
        return self._joined(whole, cut, value) or self._add(
            "slice_scatter.default",
            (Ref(whole), Ref(value), cut.dim, cut.start, cut.end, cut.step),
            like.shape,
            like,
        )

    def view(self, view: TracedOp, whole: str) -> str:
        """The cut ``view`` of another tensor."""
        like = self._tensor(view.outputs[0])
        target = view.target.removeprefix("aten.")
        name = self._add(target, (Ref(whole), *view.args[1:]), like.shape, like)
        self.tensors[name] = replace(self.tensors[name], base=self.tensors[whole].base)
        return name

    def _joined(self, whole: str, cut: _Slice, value: str) -> str | None:
        """``cat`` of this and the earlier writes, if nothing else is left of the tensor."""
        pieces = {cut.start: (cut.end, value)}
        makers = {output: op for op in (*self.trace.ops, *self.ops) for output in op.outputs}
        name = whole
        while cut.step == 1 and name in makers and makers[name].packet == "slice_scatter":
            before = makers[name]
            _, inner, dim, start, end, step = before.args
            if dim != cut.dim or step != 1 or not isinstance(inner, Ref):
                return None
            assert isinstance(start, int) and isinstance(end, int)
            if any(start < last and first < end for first, (last, _) in pieces.items()):
                return None
            pieces[start] = (end, inner.name)
            name = before.inputs[0]
        position, parts = 0, []
        for start, (end, part) in sorted(pieces.items()):
            if start != position:
                return None
            position = end
            parts.append(Ref(part))
        like = self._tensor(whole)
        if cut.step != 1 or position != like.shape[cut.dim] or len(parts) < 2:
            return None
        return self._add("cat.default", (tuple(parts), cut.dim), like.shape, like)

    def _tensor(self, name: str) -> TracedTensor:
        return self.tensors.get(name) or self.trace.tensors[name]

    def _add(
        self, target: str, args: tuple[Arg, ...], shape: tuple[int, ...], like: TracedTensor
    ) -> str:
        name = f"{self.op.outputs[0]}.{len(self.ops)}"
        made = replace(self.op, target=f"aten.{target}", args=args, kwargs=(), outputs=(name,))
        read = [self._tensor(item) for item in made.inputs]
        flows = any(tensor.requires_grad for tensor in read) and made.packet != "full_like"
        self.ops.append(made)
        self.tensors[name] = replace(
            like,
            shape=shape,
            kind=TensorKind.ACTIVATION,
            requires_grad=flows and like.dtype.startswith(("float", "bfloat")),
            dependent=any(tensor.dependent for tensor in read),
            base=name,
            fqn="",
        )
        return name


def _cut(view: TracedOp, shape: tuple[int, ...]) -> _Slice:
    """What ``view`` takes of its input, in positions from 0."""
    numbers = [arg if isinstance(arg, int) else None for arg in view.args[1:]]
    dim = (numbers[0] or 0) % len(shape) if numbers else 0
    size = shape[dim]
    if view.packet == "select":
        index = numbers[1] or 0
        index += size if index < 0 else 0
        return _Slice(dim, index, index + 1, 1)
    start, end, step = (*numbers[1:], *(None, None, None))[:3]
    first = 0 if start is None else start
    last = size if end is None else end
    first, last = (min(max(at + size if at < 0 else at, 0), size) for at in (first, last))
    return _Slice(dim, first, last, 1 if step is None else step)
