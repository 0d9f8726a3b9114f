"""Empty tensors that a model fills slice by slice: the same as one ``cat``.

``x = y.new_empty(...)``, ``x[..., :n].copy_(a)``, ``x[..., n:].copy_(b)`` writes into views,
which no functional graph can hold. Once the slices cover the tensor it is ``cat((a, b), -1)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoplan.capture.trace import Trace, TracedOp
from autoplan.ir.graph import Ref

__all__ = ["Filling"]

_EMPTY = {"new_empty", "empty", "empty_like"}


@dataclass(slots=True)
class Filling:
    """Tensors of ``trace`` whose filling has begun: their slices by first position."""

    trace: Trace
    _pieces: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    _dims: dict[str, int] = field(default_factory=dict)

    def unfinished(self, name: str) -> bool:
        """Whether a tensor is, or is a view of, one that is only filled in part."""
        return self.trace.tensors[name].base in self._pieces

    def add(self, op: TracedOp) -> bool:
        """Take a ``copy_`` into a slice of an empty tensor; False if it is none."""
        if op.packet != "copy_" or not all(isinstance(arg, Ref) for arg in op.args[:2]):
            return False
        target, source = op.inputs[:2]
        cut, tensors = self._producer(target), self.trace.tensors
        if cut is None or cut.packet != "slice" or len(cut.args) > 4:
            return False
        base = cut.inputs[0]
        made = self._producer(base)
        if made is None or made.packet not in _EMPTY:
            return False
        if tensors[source].shape != tensors[target].shape:
            return False
        if tensors[source].dtype != tensors[target].dtype:
            return False
        shape = tensors[base].shape
        dim, start = (arg if isinstance(arg, int) else 0 for arg in (*cut.args, 0, 0)[1:3])
        dim %= len(shape)
        start = min(start + shape[dim] if start < 0 else start, shape[dim])
        if self._dims.setdefault(base, dim) != dim:
            return False
        end = start + tensors[target].shape[dim]
        self._pieces.setdefault(base, {})[start] = (end, source)
        return True

    def finished(self, op: TracedOp) -> tuple[str, TracedOp] | None:
        """The tensor that the ``copy_`` just added completes, and the ``cat`` it is."""
        cut = self._producer(op.inputs[0])
        assert cut is not None
        base = cut.inputs[0]
        size, dim = self.trace.tensors[base].shape[self._dims[base]], self._dims[base]
        position, sources = 0, []
        for start, (end, source) in sorted(self._pieces[base].items()):
            if start != position:
                return None
            position = end
            sources.append(Ref(source))
        if position != size:
            return None
        del self._pieces[base], self._dims[base]
        cat = replace(
            op,
            target="aten.cat.default",
            args=(tuple(sources), dim),
            kwargs=(),
            outputs=(f"{base}.filled",),
        )
        return base, cat

    def _producer(self, name: str) -> TracedOp | None:
        return next((op for op in reversed(self.trace.ops) if name in op.outputs), None)
