"""`torch.export` of a module on the meta device, as a `Trace`."""

from __future__ import annotations

import inspect
import io
import logging
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind

from autoplan.capture.constants import WatchConstants
from autoplan.capture.failure import capture_error, user_line
from autoplan.capture.filled import Filling
from autoplan.capture.forward_checks import watch_forward
from autoplan.capture.module_checks import check_hooks, check_names
from autoplan.capture.schema import (
    argument_position,
    as_functional,
    functional_form,
    written_arguments,
)
from autoplan.capture.trace import Trace, TracedOp, TracedTensor, draws_random_numbers
from autoplan.capture.trace_checks import check_loss, check_result, check_updates
from autoplan.capture.writes import Written, write_through
from autoplan.errors import CaptureError, UnsupportedOpError
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import Const, Ref, TensorKind, tensor_refs

__all__ = ["export_trace"]

# Operators whose floating results carry no gradient whatever their inputs do.
_NO_GRADIENT = {
    "detach", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like",
    "new_zeros", "new_ones", "new_full", "new_empty", "sign", "floor", "ceil", "round",
    "bernoulli", "one_hot", "argmax", "argmin", "uniform", "exponential",
}  # fmt: skip
_OF_DTYPES = {torch.ops.aten.promote_types.default, torch.ops.aten.result_type.Tensor}
_DROPPED_KEYWORDS = {"pin_memory", "layout"}
# Operators of libraries that stand for one of torch's, argument by argument.
_SAME_AS = {"transformers.grouped_mm_fallback.default": "aten._grouped_mm.default"}


def export_trace(module: nn.Module, batch: Mapping[str, Tensor], *, name: str) -> Trace:
    """Trace of ``module(**batch)``; both on the meta device."""
    _check_signature(module, batch, name=name)
    check_names(module, name=name)
    check_hooks(module, name=name)
    watch = WatchConstants()
    try:
        with (
            torch.random.fork_rng(devices=[]),
            watch_forward(module, batch, name=name) as assigned,
            watch,
            _quiet(),
        ):
            program = torch.export.export(module, (), dict(batch), strict=False)
    except (Exception, SystemExit) as error:
        # Tracing runs the user's forward: whatever it raises is theirs to see, by line.
        raise capture_error(error, module, name=name) from error
    check_result(program, name=name)
    reader = _Reader(program, module, batch, name=name)
    trace = reader.read()
    check_updates(trace, {**assigned, **reader.updated}, name=name)
    check_loss(trace, module, name=name)
    trace.constants.update(program.constants)
    trace.constants.update(watch.values(program.constants, name=name))
    return trace


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's own dump of the graph when an export fails: the error names the line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _check_signature(module: nn.Module, batch: Mapping[str, Tensor], *, name: str) -> None:
    try:
        inspect.signature(module.forward).bind(**batch)
    except TypeError as error:
        raise CaptureError(
            f"{name}: forward of {type(module).__name__} doesn't take the batch "
            f"({', '.join(batch)}): {error}",
            hint="make the names that batch() returns those of forward's parameters",
        ) from error


@dataclass(frozen=True, slots=True)
class _DataDependent:
    """A Python number that forward computes from the values of a tensor."""

    line: str


class _Reader:
    def __init__(
        self, program: Any, module: nn.Module, batch: Mapping[str, Tensor], *, name: str
    ) -> None:
        self.program = program
        self.name = name
        self.batch = batch
        self.trace = Trace(inputs=tuple(batch), output="")
        first = {id(parameter): fqn for fqn, parameter in module.named_parameters()}
        self.canonical = {
            fqn: first[id(parameter)]
            for fqn, parameter in module.named_parameters(remove_duplicate=False)
        }
        self.trainable = {
            fqn: parameter.requires_grad for fqn, parameter in module.named_parameters()
        }
        # In-place calls give a tensor a new value: its current name.
        self.current: dict[str, str] = {}
        self.storage: dict[str, int] = {}
        self.overwritten: set[str] = set()
        # Line of the first change of each buffer, by its FQN.
        self.updated: dict[str, str] = {}
        self.filling = Filling(self.trace)
        self.prefix = ""

    def read(self) -> Trace:
        env: dict[str, Any] = {}
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        user_inputs = iter(self.batch)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                env[node.name] = self._placeholder(node, specs[node.name], user_inputs)
        self._run(self.program.graph_module, env)
        return self.trace

    def _placeholder(self, node: Any, spec: Any, user_inputs: Any) -> Ref:
        value = node.meta["val"]
        match spec.kind:
            case InputKind.USER_INPUT:
                name, kind, fqn = next(user_inputs), TensorKind.INPUT, ""
            case InputKind.PARAMETER:
                fqn = self.canonical[spec.target]
                name, kind = f"p_{fqn}", TensorKind.PARAMETER
            case InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                fqn = str(spec.target)
                name, kind = f"b_{fqn}", TensorKind.BUFFER
            case _:
                raise CaptureError(
                    f"{self.name}: the model holds {spec.target!r}, which is no tensor",
                    hint="keep custom objects out of forward",
                )
        is_parameter = kind is TensorKind.PARAMETER
        self._add(
            name,
            value,
            kind=kind,
            requires_grad=is_parameter and self.trainable[fqn] and value.is_floating_point(),
            dependent=is_parameter,
            base=name,
            fqn=fqn,
        )
        return Ref(name)

    def _add(self, name: str, value: Tensor, *, base: str, **facts: Any) -> None:
        self.storage[name] = value.untyped_storage()._cdata
        self.trace.tensors[name] = TracedTensor(
            shape=tuple(int(size) for size in value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            base=base,
            **facts,
        )

    def _run(self, graph_module: Any, env: dict[str, Any]) -> Any:
        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                env[node.name] = self._attribute(graph_module, node)
            elif node.op == "call_function":
                env[node.name] = self._call(graph_module, node, env)
            elif node.op == "output":
                result = self._arg(node.args[0], env)
        if graph_module is self.program.graph_module:
            names = list(tensor_refs(result))
            count = len(self.program.graph_signature.user_outputs)
            names = names[len(names) - count :] if count else []
            if len(names) != 1 or self.trace.tensors[names[0]].shape != ():
                shapes = [self.trace.tensors[item].shape for item in names]
                raise CaptureError(
                    f"{self.name}: forward must return one scalar loss; it returns {shapes}",
                    hint="return the mean loss over the batch from forward",
                )
            self.trace.output = names[0]
        return result

    def _attribute(self, graph_module: Any, node: Any) -> Any:
        value: Any = graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            return value
        name = f"b_{node.target}"
        if name not in self.trace.tensors:
            self._add(
                name, value, kind=TensorKind.BUFFER, requires_grad=False, dependent=False,
                base=name, fqn=str(node.target),
            )  # fmt: skip
        return Ref(name)

    def _call(self, graph_module: Any, node: Any, env: dict[str, Any]) -> Any:
        target = node.target
        if target is operator.getitem:
            return env[node.args[0].name][node.args[1]]
        name = getattr(target, "__name__", str(target))
        if name.startswith(("_assert", "sym_constrain")):
            return None
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._inline(node, env, name)
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
            # Fine as long as only a check reads it.
            return _DataDependent(user_line(node))
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(
                f"{self.name}: {name} at {user_line(node)} is no tensor operator",
                hint="write this part with operators on whole tensors: no vmap, no sizes from data",
            )
        return self._operator(node, target, env)

    def _inline(self, node: Any, env: dict[str, Any], name: str) -> Any:
        args = [self._arg(arg, env) for arg in node.args]
        match name:
            case "wrap_with_set_grad_enabled":
                grad, inner, rest = bool(args[0]), args[1], args[2:]
            case "wrap_with_autocast" if args[2] is False:
                grad, inner, rest = True, args[4], args[5:]
            case _:
                raise CaptureError(
                    f"{self.name}: {name} at {user_line(node)} can't be planned",
                    hint="write this part with plain tensor operators",
                )
        if not grad:
            rest = [self._detached(arg, node) for arg in rest]
        names = [item.name for item in inner.graph.nodes if item.op == "placeholder"]
        outer, self.prefix = self.prefix, f"{self.prefix}{node.name}."
        result = self._run(inner, dict(zip(names, rest, strict=True)))
        self.prefix = outer
        return result

    def _detached(self, arg: Any, node: Any) -> Any:
        """The argument without gradient: what it means for a region to have none."""
        if not isinstance(arg, Ref) or not self.trace.tensors[arg.name].requires_grad:
            return arg
        name = f"{node.name}.{arg.name}.detached"
        if name not in self.trace.tensors:
            stack = list(node.meta.get("nn_module_stack", {}).values())
            op = TracedOp(
                target="aten.detach.default",
                args=(arg,),
                kwargs=(),
                outputs=(name,),
                module_path=stack[-1][0] if stack else "",
                source=user_line(node),
            )
            tensor = self.trace.tensors[arg.name]
            self.trace.tensors[name] = replace(
                tensor, kind=TensorKind.ACTIVATION, requires_grad=False, fqn=""
            )
            self.storage[name] = self.storage[arg.name]
            self.trace.ops.append(op)
        return Ref(name)

    def _operator(self, node: Any, target: Any, env: dict[str, Any]) -> Any:
        args = tuple(self._arg(arg, env) for arg in node.args)
        kwargs = tuple(
            (key, self._arg(arg, env))
            for key, arg in node.kwargs.items()
            if key not in _DROPPED_KEYWORDS
        )
        values = node.meta["val"]
        if values is None and target in _OF_DTYPES:
            known = torch.fx.node.map_arg(node.args, lambda arg: arg.meta["val"])
            return self._arg(target(*known), env)
        if values is None:
            raise CaptureError(f"{self.name}: {target} at {user_line(node)} gives no tensor")
        single = isinstance(values, Tensor)
        values = [values] if single else list(values)
        if any(not isinstance(value, Tensor) for value in values):
            raise CaptureError(f"{self.name}: {target} at {user_line(node)} gives no tensor")
        if any(isinstance(size, torch.SymInt) for value in values for size in value.shape):
            raise CaptureError(
                f"{self.name}: {target} at {user_line(node)} gives a tensor whose size depends on "
                "the values of another",
                hint="mask whole tensors (torch.where, a product) instead of selecting elements",
            )
        name = self.prefix + node.name
        outputs = tuple([name] if single else [f"{name}.{i}" for i in range(len(values))])
        stack = list(node.meta.get("nn_module_stack", {}).values())
        op = TracedOp(
            target=self._target(node, str(target)),
            args=args,
            kwargs=kwargs,
            outputs=outputs,
            module_path=stack[-1][0] if stack else "",
            source=user_line(node),
        )
        if op.packet == "detach_" and not self.trace.tensors[op.inputs[0]].requires_grad:
            return args[0]
        if self.filling.add(op):
            self._fill(op, node)
            return args[0]
        if op.packet != "slice" and any(map(self.filling.unfinished, op.inputs)):
            raise CaptureError(
                f"{self.name}: {op.target} at {op.source} reads a tensor that is empty in part",
                hint="fill it along one dim before it is read, or use torch.cat",
            )
        written = written_arguments(target)
        if written == (0,) and (through := write_through(self.trace, op, functional_form(op))):
            return self._write_through(through)
        if written and not self._functional(op, written):
            return args[0]
        if written:
            op = as_functional(op)
        self._outputs(op, values, fresh=bool(written))
        self.trace.ops.append(op)
        if written:
            self._overwrite(op.inputs[0], outputs[0])
        return Ref(outputs[0]) if single else tuple(map(Ref, outputs))

    def _write_through(self, written: Written) -> Ref:
        self.trace.tensors.update(written.tensors)
        self.trace.ops.extend(written.ops)
        # Later views of the tensor are found by its storage.
        for name in (written.view, written.result):
            self.storage[name] = self.storage[written.base]
        self._overwrite(written.base, written.result)
        return Ref(written.view)

    def _overwrite(self, before: str, after: str) -> None:
        for old, new in [*self.current.items(), (before, before)]:
            if new == before:
                self.current[old] = after
        self.overwritten.add(before)

    def _fill(self, op: TracedOp, node: Any) -> None:
        found = self.filling.finished(op)
        if found is None:
            return
        base, cat = found
        tensor = self.trace.tensors[base]
        value = torch.empty(tensor.shape, dtype=node.meta["val"].dtype, device="meta")
        self._outputs(cat, [value], fresh=True)
        self.trace.ops.append(cat)
        self.current[base] = cat.outputs[0]
        self.overwritten.add(base)

    def _target(self, node: Any, target: str) -> str:
        target = _SAME_AS.get(target, target)
        if target.startswith("aten.") or target == EXPERTS:
            return target
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise UnsupportedOpError(
                f"{self.name}: custom operator {target} at {user_line(node)} draws random numbers",
                hint="copies on the ranks would differ: draw them with torch and pass them in",
            )
        return target

    def _outputs(self, op: TracedOp, values: list[Tensor], *, fresh: bool) -> None:
        tensors = self.trace.tensors
        inputs = [tensors[name] for name in op.inputs]
        # Random values are never computed again by each stage, as what is shared would be.
        dependent = any(tensor.dependent for tensor in inputs) or draws_random_numbers(op)
        flows = any(tensor.requires_grad for tensor in inputs)
        flows = flows and op.packet not in _NO_GRADIENT
        for name, value in zip(op.outputs, values, strict=True):
            base = name if fresh else self._base(op, name, value)
            self._add(
                name,
                value,
                kind=TensorKind.ACTIVATION,
                requires_grad=flows and value.is_floating_point(),
                dependent=dependent,
                base=base,
            )

    def _base(self, op: TracedOp, name: str, value: Tensor) -> str:
        """Tensor whose storage the output views."""
        storage = value.untyped_storage()._cdata
        for read in op.inputs:
            if self.storage[read] == storage:
                return self.trace.tensors[read].base
        if op.packet == "dropout" and (op.args[1] == 0 or op.args[2] is False):
            # It gives its input itself, whatever its meta kernel does.
            return self.trace.tensors[op.inputs[0]].base
        if op.packet in {"contiguous", "reshape"}:
            return self._attention_output(op.inputs[0]) or name
        return name

    def _attention_output(self, name: str) -> str | None:
        # Fused kernels lay their result out as (batch, sequence, heads, channels): the
        # transpose that follows is contiguous already, while the meta kernel says otherwise.
        if not self.trace.ops or name not in self.trace.ops[-1].outputs:
            return None
        last = self.trace.ops[-1]
        if last.packet != "transpose" or last.args[1:] != (1, 2) or len(self.trace.ops) < 2:
            return None
        before = self.trace.ops[-2]
        if before.packet != "scaled_dot_product_attention" or before.outputs != last.inputs:
            return None
        return before.outputs[0]

    def _functional(self, op: TracedOp, written: tuple[int, ...]) -> bool:
        """True if the in-place call can become a functional one, False if it is dropped."""
        arguments = dict(enumerate(op.args))
        arguments |= {argument_position(op.target, key): value for key, value in op.kwargs}
        first = arguments[written[0]]
        assert isinstance(first, Ref)
        tensor = self.trace.tensors[first.name]
        base = self.trace.tensors[tensor.base]
        if base.kind is TensorKind.BUFFER:
            self.updated.setdefault(base.fqn, op.source)
            self.trace.notes.append(f"update of buffer {base.fqn}")
            return False
        simple = written == (0,) and op.packet.endswith("_") and len(op.outputs) == 1
        alone = tensor.base == first.name
        if not simple or not alone or tensor.kind is not TensorKind.ACTIVATION:
            what = (
                "a view"
                if base.kind is TensorKind.ACTIVATION
                else f"{base.kind} {base.fqn or tensor.base}"
            )
            raise CaptureError(
                f"{self.name}: {op.target} at {op.source} writes into {what}",
                hint="use the operator that returns a new tensor, such as torch.where",
            )
        return True

    def _arg(self, arg: Any, env: dict[str, Any]) -> Any:
        match arg:
            case torch.fx.Node():
                return self._latest(env[arg.name])
            case tuple() | list():
                return tuple(self._arg(item, env) for item in arg)
            case torch.dtype() | torch.layout() | torch.memory_format():
                kind = type(arg).__name__
                return Const(kind, str(arg).removeprefix("torch."))
            case torch.device():
                return Const("device", "")
            case None | bool() | int() | float() | str():
                return arg
        raise CaptureError(
            f"{self.name}: an operator takes {arg!r} of type {type(arg).__name__}",
            hint="sizes that depend on data can't be planned for",
        )

    def _latest(self, value: Any) -> Any:
        if isinstance(value, _DataDependent):
            raise CaptureError(
                f"{self.name}: the number made at {value.line} depends on the values of a tensor",
                hint="use operators on whole tensors instead of .item()",
            )
        if isinstance(value, Ref):
            name = self.current.get(value.name, value.name)
            base = self.trace.tensors[name].base
            if base in self.overwritten and base != name:
                raise CaptureError(
                    f"{self.name}: a view is read after its tensor was changed in place",
                    hint="use the operator that returns a new tensor instead",
                )
            return Ref(name)
        if isinstance(value, tuple):
            return tuple(self._latest(item) for item in value)
        return value
