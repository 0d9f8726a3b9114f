"""Runs a `Graph` operator by operator in eager torch: the reference for captures."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from autoplan.ir.graph import Arg, Bound, Const, Graph, Op, Ref, TensorKind
from autoplan.ir.graph import Tensor as GraphTensor


@pytest.fixture(scope="session")
def run_graph():
    """Function ``(graph, module, batch) -> loss``."""
    return _run_graph


def _run_graph(graph: Graph, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Loss of the graph with the parameters of ``module``."""
    parameters = dict(module.named_parameters())
    buffers = {b.fqn: _decode(b.data, b.shape, b.dtype) for b in graph.buffers}
    by_name = {fqn.replace(".", "_"): value for fqn, value in buffers.items()}
    shared: dict[str, Tensor] = dict(batch)
    for tensor in graph.shared_tensors:
        if tensor.kind is TensorKind.BUFFER:
            shared[tensor.name] = by_name[tensor.name]
    for op in graph.shared_ops:
        _call(op, shared, graph.shared_tensors)
    passed: tuple[Tensor, ...] = ()
    for instance in graph.instances:
        block = graph.block_class(instance)
        local = {name: shared[name] for name in block.shared}
        local.update(zip(block.inputs, passed, strict=True))
        local.update(
            zip(block.parameters, (parameters[f] for f in instance.parameters), strict=True)
        )
        local.update(zip(block.buffers, (buffers[f] for f in instance.buffers), strict=True))
        for op in block.ops:
            _call(op, local, block.tensors, instance.numbers)
        passed = tuple(local[tensor.name] for tensor in graph.handed_on(instance))
    (loss,) = passed
    return loss


def _call(
    op: Op,
    values: dict[str, Tensor],
    tensors: tuple[GraphTensor, ...],
    numbers: tuple[float, ...] = (),
) -> None:
    target = torch.ops
    for part in op.target.split("."):
        target = getattr(target, part)
    args = [_value(arg, values, numbers) for arg in op.args]
    kwargs = {key: _value(arg, values, numbers) for key, arg in op.kwargs}
    result = target(*args, **kwargs)
    results = [result] if isinstance(result, Tensor) else list(result)
    described = {tensor.name: tensor for tensor in tensors}
    for name, value in zip(op.outputs, results, strict=True):
        assert tuple(value.shape) == described[name].shape, (op, value.shape, described[name])
        assert str(value.dtype) == f"torch.{described[name].dtype}", (op, value.dtype)
        assert value.requires_grad == described[name].requires_grad, op
        values[name] = value


def _decode(data: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    raw = bytearray(zlib.decompress(base64.b64decode(data)))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).reshape(shape).clone()


def _value(arg: Arg, values: Mapping[str, Tensor], numbers: tuple[float, ...]) -> object:
    match arg:
        case Ref(name):
            return values[name]
        case Bound(index):
            return numbers[index]
        case Const("device", _):
            return torch.device("cpu")
        case Const(_, name):
            return getattr(torch, name)
        case tuple():
            return [_value(item, values, numbers) for item in arg]
    return arg
