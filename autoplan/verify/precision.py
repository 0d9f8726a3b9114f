"""A plan's program in float32: rounding of half precision would hide small errors."""

from __future__ import annotations

import base64
import zlib

import torch

from autoplan.ir.plan import (
    BlockClassRecord,
    BufferRecord,
    GraphRecord,
    Json,
    OpRecord,
    Plan,
    TensorRecord,
)

__all__ = ["in_float32"]

_HALF = ("bfloat16", "float16")


def in_float32(plan: Plan) -> Plan:
    """The same plan with every half-precision tensor and cast made float32."""
    if plan.graph.dtype == "float32":
        return plan
    graph = plan.graph
    wide = GraphRecord(
        name=graph.name,
        dtype="float32",
        micro_batch_size=graph.micro_batch_size,
        inputs=tuple(map(_tensor, graph.inputs)),
        shared_ops=tuple(map(_op, graph.shared_ops)),
        shared_tensors=tuple(map(_tensor, graph.shared_tensors)),
        classes=tuple(map(_block, graph.classes)),
        instances=graph.instances,
        parameters=tuple(p.model_copy(update={"dtype": _dtype(p.dtype)}) for p in graph.parameters),
        buffers=tuple(map(_buffer, graph.buffers)),
        notes=graph.notes,
    )
    workload = plan.workload.model_copy(update={"dtype": "float32"})
    return plan.model_copy(update={"graph": wide, "workload": workload})


def _dtype(name: str) -> str:
    return "float32" if name in _HALF else name


def _tensor(tensor: TensorRecord) -> TensorRecord:
    return tensor.model_copy(update={"dtype": _dtype(tensor.dtype)})


def _op(op: OpRecord) -> OpRecord:
    args = tuple(map(_arg, op.args))
    kwargs = tuple((key, _arg(value)) for key, value in op.kwargs)
    return op.model_copy(update={"args": args, "kwargs": kwargs})


def _arg(arg: Json) -> Json:
    if isinstance(arg, list):
        return [_arg(item) for item in arg]
    match arg:
        case {"const": ["dtype", str(name)]}:
            return {"const": ["dtype", _dtype(name)]}
    return arg


def _block(block: BlockClassRecord) -> BlockClassRecord:
    return block.model_copy(
        update={
            "ops": tuple(map(_op, block.ops)),
            "tensors": tuple(map(_tensor, block.tensors)),
        }
    )


def _buffer(buffer: BufferRecord) -> BufferRecord:
    if buffer.dtype not in _HALF:
        return buffer
    raw = bytearray(zlib.decompress(base64.b64decode(buffer.data)))
    dtype: torch.dtype = getattr(torch, buffer.dtype)
    wide = torch.frombuffer(raw, dtype=dtype).float() if raw else torch.empty(0)
    data = base64.b64encode(zlib.compress(wide.numpy().tobytes(), 9)).decode("ascii")
    return buffer.model_copy(update={"dtype": "float32", "data": data})
