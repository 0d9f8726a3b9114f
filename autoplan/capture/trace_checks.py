"""What a traced forward must be: one scalar loss with a gradient, and no state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.export.graph_signature import OutputKind, TensorArgument

from autoplan.capture.trace import Trace
from autoplan.errors import CaptureError
from autoplan.ir.graph import TensorKind

__all__ = ["check_loss", "check_result", "check_updates"]


def check_result(program: Any, *, name: str) -> None:
    """Raise CaptureError unless the exported forward returns a tensor, and it alone."""
    spec = program.call_spec.out_spec
    kind = "" if spec.is_leaf() else spec.type.__name__
    returned = [
        output.arg
        for output in program.graph_signature.output_specs
        if output.kind is OutputKind.USER_OUTPUT
    ]
    if not kind and all(isinstance(value, TensorArgument) for value in returned):
        return
    kind = kind or type(getattr(returned[0], "value", None)).__name__
    raise CaptureError(
        f"{name}: forward must return one scalar loss; it returns a {kind}",
        hint="return the loss tensor itself from forward, not a container or a number",
    )


def check_loss(trace: Trace, module: nn.Module, *, name: str) -> None:
    """Raise CaptureError when no gradient flows from the loss to a trainable parameter."""
    for op in trace.ops:
        dtypes = {trace.tensors[output].dtype for output in op.outputs}
        flows = any(trace.tensors[read].requires_grad for read in op.inputs)
        if flows and any(dtype.startswith("complex") for dtype in dtypes):
            raise CaptureError(
                f"{name}: {op.target} at {op.source} gives complex numbers with a gradient",
                hint="compute with real and imaginary parts as tensors of their own",
            )
    if trace.tensors[trace.output].requires_grad:
        return
    trained = sum(parameter.requires_grad for parameter in module.parameters())
    if not trained:
        return  # the solver says so, with what to do
    last = next((op for op in reversed(trace.ops) if trace.output in op.outputs), None)
    at = f" ({last.source})" if last is not None and last.source else ""
    raise CaptureError(
        f"{name}: the loss{at} has no gradient to any of the {trained} trainable parameters",
        hint="keep detach(), no_grad() and integer operators such as argmax out of its way",
    )


def check_updates(trace: Trace, updated: Mapping[str, str], *, name: str) -> None:
    """Raise CaptureError for a buffer that forward changes and the loss depends on.

    ``updated`` has the source line of each change by the buffer's name. Changes that the loss
    never reads (a count of batches) are left out of programs.
    """
    live = {trace.output}
    for op in reversed(trace.ops):
        if live.intersection(op.outputs):
            live.update(op.inputs)
    for tensor in live:
        found = trace.tensors[tensor]
        if found.kind is TensorKind.BUFFER and found.fqn in updated:
            line = updated[found.fqn]
            raise CaptureError(
                f"{name}: forward changes buffer {found.fqn}" + (f" at {line}" if line else "")
                + ", and the loss depends on it",
                hint="make it a parameter, or an input that batch() returns; a program has no "
                "state that forward changes",
            )  # fmt: skip
