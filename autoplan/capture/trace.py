"""One exported model as a flat list of operators: `Trace`.

`torch.export` gives a graph of ATen calls. Here its bookkeeping is dropped (metadata
assertions, no-op casts, unused results), in-place calls become functional ones, and each
tensor gets what the planner needs to know: whether a parameter lies upstream, whether it
carries a gradient, and whose storage it views.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from autoplan.ir.graph import Arg, Const, Ref, TensorKind, aten_name, tensor_refs

__all__ = ["Trace", "TracedOp", "TracedTensor", "draws_random_numbers", "simplify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTensor:
    """A tensor of the trace; ``dependent``: some parameter lies upstream."""

    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    requires_grad: bool
    dependent: bool
    base: str
    fqn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """An ATen call on tensors of the trace."""

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outputs: tuple[str, ...]
    module_path: str
    source: str
    mask: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensor inputs in argument order."""
        names = [name for arg in self.args for name in tensor_refs(arg)]
        return tuple(names + [name for _, arg in self.kwargs for name in tensor_refs(arg)])

    @property
    def packet(self) -> str:
        """Name of one of torch's operators, without overload; empty for another library's."""
        return aten_name(self.target)


@dataclass(slots=True, kw_only=True)
class Trace:
    """Operators in program order; ``inputs`` are the batch, ``output`` the loss.

    ``constants`` are the values of tensors made in forward from Python numbers.
    """

    inputs: tuple[str, ...]
    output: str
    ops: list[TracedOp] = field(default_factory=list)
    tensors: dict[str, TracedTensor] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def simplify(trace: Trace) -> Trace:
    """The trace without no-ops, repeated parameter-free operators, and unused results."""
    trace = _with_dense_gradients(_with_portable_histograms(_without_round_trips(trace)))
    ops, renamed = _without_no_ops(trace)
    output = renamed.get(trace.output, trace.output)
    ops, merged = _merge_parameter_free(ops, trace.tensors)
    output = merged.get(output, output)
    live = {output}
    kept = []
    for op in reversed(ops):
        if live.intersection(op.outputs):
            live.update(op.inputs)
            kept.append(op)
    kept.reverse()
    tensors = {
        name: replace(tensor, base=_rename(_rename(tensor.base, renamed), merged))
        for name, tensor in trace.tensors.items()
    }
    return replace(trace, output=output, ops=kept, tensors=tensors)


def _rename(name: str, renamed: dict[str, str]) -> str:
    return renamed.get(name, name)


def _substitute(arg: Arg, renamed: dict[str, str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(renamed.get(arg.name, arg.name))
    if isinstance(arg, tuple):
        return tuple(_substitute(item, renamed) for item in arg)
    return arg


def _with_inputs(op: TracedOp, renamed: dict[str, str]) -> TracedOp:
    return replace(
        op,
        args=tuple(_substitute(arg, renamed) for arg in op.args),
        kwargs=tuple((key, _substitute(arg, renamed)) for key, arg in op.kwargs),
    )


def _without_no_ops(trace: Trace) -> tuple[list[TracedOp], dict[str, str]]:
    renamed: dict[str, str] = {}
    kept = []
    for op in trace.ops:
        op = _with_inputs(op, renamed)
        if _is_no_op(op, trace):
            renamed[op.outputs[0]] = op.inputs[0]
        else:
            kept.append(_plain_cast(op, trace))
    return kept, renamed


def _without_round_trips(trace: Trace) -> Trace:
    """Samples taken apart and joined again along the next dim, as a reshape.

    Otherwise the graph would have an operator with as many results as the batch has samples.
    """
    apart = {
        op.outputs: op for op in trace.ops if op.packet == "unbind" and op.args[1:] in ((), (0,))
    }
    ops = []
    for op in trace.ops:
        first, *rest = op.args or (None,)
        if op.packet == "cat" and rest in ([], [0]) and isinstance(first, tuple):
            made = apart.get(tuple(arg.name for arg in first if isinstance(arg, Ref)))
            if made is not None and len(made.outputs) == len(first):
                shape = trace.tensors[op.outputs[0]].shape
                op = replace(op, target="aten.reshape.default", args=(made.args[0], shape))
        ops.append(op)
    return replace(trace, ops=ops)


# Position of ``sparse`` among the arguments.
_SPARSE = {"embedding": 4, "embedding_bag": 5, "_embedding_bag": 5}


def _with_dense_gradients(trace: Trace) -> Trace:
    """Tables whose gradient would be a sparse tensor get the same one as a dense tensor."""
    ops, notes = [], list(trace.notes)
    for op in trace.ops:
        at = _SPARSE.get(op.packet, len(op.args))
        if op.args[at : at + 1] == (True,):
            op = replace(op, args=(*op.args[:at], False, *op.args[at + 1 :]))
            table = trace.tensors[op.inputs[0]].fqn
            notes.append(f"sparse gradient of {table or op.inputs[0]}")
        ops.append(op)
    return replace(trace, ops=ops, notes=notes)


def _with_portable_histograms(trace: Trace) -> Trace:
    """Histograms of integers count in float32: the CPU has no integer kernel."""
    tensors, ops = dict(trace.tensors), []
    for op in trace.ops:
        if op.packet != "histc" or not tensors[op.inputs[0]].dtype.startswith("int"):
            ops.append(op)
            continue
        (read,), (result,) = op.inputs, op.outputs
        wide, counts = f"{result}.input", f"{result}.counts"
        tensors[wide] = replace(tensors[read], dtype="float32", base=wide, fqn="")
        tensors[counts] = replace(tensors[result], dtype="float32", base=counts)
        ops += [
            _cast(op, read, wide, "float32"),
            replace(op, args=(Ref(wide), *op.args[1:]), outputs=(counts,)),
            _cast(op, counts, result, tensors[result].dtype),
        ]
    return replace(trace, ops=ops, tensors=tensors)


def _cast(like: TracedOp, read: str, result: str, dtype: str) -> TracedOp:
    args = (Ref(read), Const("dtype", dtype))
    return replace(like, target="aten.to.dtype", args=args, kwargs=(), outputs=(result,))


def _is_no_op(op: TracedOp, trace: Trace) -> bool:
    if not op.inputs or len(op.outputs) != 1:
        return False
    before, after = trace.tensors[op.inputs[0]], trace.tensors[op.outputs[0]]
    same = before.shape == after.shape and before.dtype == after.dtype
    match op.packet:
        case "to" | "_to_copy":
            return same
        case "alias" | "lift_fresh_copy" | "lift_fresh":
            return True
        case "detach":
            return not before.requires_grad
        case "view" | "reshape" | "expand" | "slice":
            return same
        case "dropout":
            return op.args[1] == 0 or op.args[2] is False
    return False


def _plain_cast(op: TracedOp, trace: Trace) -> TracedOp:
    if op.packet not in {"to", "_to_copy"}:
        return op
    return _cast(op, op.inputs[0], op.outputs[0], trace.tensors[op.outputs[0]].dtype)


_RANDOM = {
    "alpha_dropout", "bernoulli", "dropout", "exponential", "feature_alpha_dropout",
    "feature_dropout", "multinomial", "normal", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "uniform",
}  # fmt: skip


def draws_random_numbers(op: TracedOp) -> bool:
    """Whether the operator draws random numbers; a dropout of nothing doesn't."""
    idle = "dropout" in op.packet and (op.args[1] == 0 or op.args[2] is False)
    return op.packet in _RANDOM and not idle


def _merge_parameter_free(
    ops: list[TracedOp], tensors: dict[str, TracedTensor]
) -> tuple[list[TracedOp], dict[str, str]]:
    """Compute once what every layer computes again from the batch alone (rotary tables)."""
    renamed: dict[str, str] = {}
    seen: dict[tuple[object, ...], TracedOp] = {}
    kept = []
    for op in ops:
        op = _with_inputs(op, renamed)
        free = not any(tensors[name].dependent for name in op.outputs)
        key = (op.target, op.args, op.kwargs, tuple(map(type, op.args)))
        if free and op.packet not in _RANDOM and key in seen:
            renamed.update(zip(op.outputs, seen[key].outputs, strict=True))
            continue
        if free:
            seen[key] = op
        kept.append(op)
    return kept, renamed
