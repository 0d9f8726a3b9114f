"""A plan's program in float32 or float64: rounding would hide small errors."""

from __future__ import annotations

import base64
import zlib

import torch

from autoplan.ir.fields import Json
from autoplan.ir.graph_record import (
    BlockClassRecord,
    BufferRecord,
    GraphRecord,
    OpRecord,
    TensorRecord,
)
from autoplan.ir.plan import Plan

__all__ = ["WIDER", "in_precision"]

WIDER = {
    "float32": {"bfloat16": "float32", "float16": "float32"},
    "float64": {
        "bfloat16": "float64",
        "float16": "float64",
        "float32": "float64",
        "complex64": "complex128",
    },
}
"""What each dtype becomes in a program of the precision."""


def in_precision(plan: Plan, precision: str) -> Plan:
    """The same plan with every narrower floating tensor and cast made ``precision``."""
    if plan.graph.dtype == precision:
        return plan
    return plan.model_copy(
        update={
            "graph": _Wide(WIDER[precision]).graph(plan.graph, precision),
            "workload": plan.workload.model_copy(update={"dtype": precision}),
        }
    )


class _Wide:
    """Copies of records in which dtypes are replaced."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def _dtype(self, name: str) -> str:
        return self._names.get(name, name)

    def graph(self, graph: GraphRecord, precision: str) -> GraphRecord:
        parameters = (
            p.model_copy(update={"dtype": self._dtype(p.dtype)}) for p in graph.parameters
        )
        return GraphRecord(
            name=graph.name,
            dtype=precision,
            micro_batch_size=graph.micro_batch_size,
            inputs=tuple(map(self._tensor, graph.inputs)),
            shared_ops=tuple(map(self._op, graph.shared_ops)),
            shared_tensors=tuple(map(self._tensor, graph.shared_tensors)),
            classes=tuple(map(self._block, graph.classes)),
            instances=graph.instances,
            parameters=tuple(parameters),
            buffers=tuple(map(self._buffer, graph.buffers)),
            notes=graph.notes,
        )

    def _tensor(self, tensor: TensorRecord) -> TensorRecord:
        return tensor.model_copy(update={"dtype": self._dtype(tensor.dtype)})

    def _op(self, op: OpRecord) -> OpRecord:
        args = tuple(map(self._arg, op.args))
        kwargs = tuple((key, self._arg(value)) for key, value in op.kwargs)
        return op.model_copy(update={"args": args, "kwargs": kwargs})

    def _arg(self, arg: Json) -> Json:
        if isinstance(arg, list):
            return [self._arg(item) for item in arg]
        match arg:
            case {"const": ["dtype", str(name)]}:
                return {"const": ["dtype", self._dtype(name)]}
        return arg

    def _block(self, block: BlockClassRecord) -> BlockClassRecord:
        return block.model_copy(
            update={
                "ops": tuple(map(self._op, block.ops)),
                "tensors": tuple(map(self._tensor, block.tensors)),
            }
        )

    def _buffer(self, buffer: BufferRecord) -> BufferRecord:
        wide_name = self._dtype(buffer.dtype)
        if wide_name == buffer.dtype:
            return buffer
        raw = bytearray(zlib.decompress(base64.b64decode(buffer.data)))
        dtype: torch.dtype = getattr(torch, buffer.dtype)
        wide_dtype: torch.dtype = getattr(torch, wide_name)
        wide = torch.frombuffer(raw, dtype=dtype).to(wide_dtype) if raw else torch.empty(0)
        data = base64.b64encode(zlib.compress(wide.numpy().tobytes(), 9)).decode("ascii")
        return buffer.model_copy(update={"dtype": wide_name, "data": data})
