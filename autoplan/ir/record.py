"""`Graph` to and from the records of the plan file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoplan.ir.fields import Json
from autoplan.ir.graph import (
    Arg,
    BlockClass,
    BlockInstance,
    Bound,
    Buffer,
    Const,
    Graph,
    Init,
    Op,
    Parameter,
    Ref,
    Tensor,
    TensorKind,
)
from autoplan.ir.graph_record import (
    BlockClassRecord,
    BufferRecord,
    GraphRecord,
    InitRecord,
    InnerRecord,
    InstanceRecord,
    OpRecord,
    ParameterRecord,
    StrategyRecord,
    TensorRecord,
)
from autoplan.ir.placement import CollectiveKind, Placement, parse_placement
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import InnerCollective, OpStrategy

__all__ = [
    "graph_from_record",
    "graph_to_record",
    "op_from_record",
    "op_to_record",
    "strategies_from_record",
    "strategy_to_record",
]

ClassStrategies = Mapping[str, OpStrategy]


def graph_to_record(
    graph: Graph,
    *,
    strategies: tuple[ClassStrategies, ...] = (),
    boundaries: tuple[tuple[tuple[Placement, ...], tuple[Placement, ...]], ...] = (),
    placements: Mapping[str, tuple[Placement, bool]] | None = None,
    levels: Sequence[Recompute] = (),
) -> GraphRecord:
    """Record of a graph, with strategies by (class, op name) and parameter placements by FQN.

    ``levels`` are those of recompute by class; none where left out.
    """
    placements = placements or {}
    classes = []
    for index, block in enumerate(graph.classes):
        chosen = strategies[index] if strategies else {}
        ins, outs = boundaries[index] if boundaries else ((), ())
        classes.append(
            BlockClassRecord(
                name=block.name,
                ops=tuple(op_to_record(op, chosen.get(op.name)) for op in block.ops),
                tensors=tuple(map(_tensor_to_record, block.tensors)),
                inputs=block.inputs,
                outputs=block.outputs,
                parameters=block.parameters,
                buffers=block.buffers,
                shared=block.shared,
                boundary_in=tuple(map(str, ins)),
                boundary_out=tuple(map(str, outs)),
                recompute=(levels[index] if levels else Recompute.NONE).value,
            )
        )
    return GraphRecord(
        name=graph.name,
        dtype=graph.dtype,
        micro_batch_size=graph.micro_batch_size,
        inputs=tuple(map(_tensor_to_record, graph.inputs)),
        shared_ops=tuple(op_to_record(op, None) for op in graph.shared_ops),
        shared_tensors=tuple(map(_tensor_to_record, graph.shared_tensors)),
        classes=tuple(classes),
        instances=tuple(
            InstanceRecord(
                name=i.name,
                block_class=i.block_class,
                parameters=i.parameters,
                buffers=i.buffers,
                unused=i.unused,
                numbers=i.numbers,
            )
            for i in graph.instances
        ),
        parameters=tuple(_parameter_to_record(p, placements) for p in graph.parameters),
        buffers=tuple(
            BufferRecord(
                fqn=b.fqn, shape=b.shape, dtype=b.dtype, persistent=b.persistent, data=b.data
            )
            for b in graph.buffers
        ),
        notes=graph.notes,
    )


def graph_from_record(record: GraphRecord) -> Graph:
    """Graph of a record."""
    return Graph(
        name=record.name,
        dtype=record.dtype,
        micro_batch_size=record.micro_batch_size,
        inputs=tuple(map(_tensor_from_record, record.inputs)),
        shared_ops=tuple(map(op_from_record, record.shared_ops)),
        shared_tensors=tuple(map(_tensor_from_record, record.shared_tensors)),
        classes=tuple(
            BlockClass(
                name=c.name,
                ops=tuple(map(op_from_record, c.ops)),
                tensors=tuple(map(_tensor_from_record, c.tensors)),
                inputs=c.inputs,
                outputs=c.outputs,
                parameters=c.parameters,
                buffers=c.buffers,
                shared=c.shared,
            )
            for c in record.classes
        ),
        instances=tuple(
            BlockInstance(
                name=i.name,
                block_class=i.block_class,
                parameters=i.parameters,
                buffers=i.buffers,
                unused=i.unused,
                numbers=i.numbers,
            )
            for i in record.instances
        ),
        parameters=tuple(
            Parameter(
                fqn=p.fqn,
                shape=p.shape,
                dtype=p.dtype,
                trainable=p.trainable,
                init=Init(kind=p.init.kind, a=p.init.a, b=p.init.b),
                aliases=p.aliases,
            )
            for p in record.parameters
        ),
        buffers=tuple(
            Buffer(fqn=b.fqn, shape=b.shape, dtype=b.dtype, persistent=b.persistent, data=b.data)
            for b in record.buffers
        ),
        notes=record.notes,
    )


def strategies_from_record(record: GraphRecord) -> tuple[dict[str, OpStrategy], ...]:
    """Chosen strategy by op name, for each class."""
    return tuple(
        {op.name: _strategy_from_record(op.strategy) for op in c.ops if op.strategy is not None}
        for c in record.classes
    )


def strategy_to_record(strategy: OpStrategy) -> StrategyRecord:
    """Record of a strategy."""
    return StrategyRecord(
        inputs=tuple(map(str, strategy.inputs)),
        outputs=tuple(map(str, strategy.outputs)),
        inner=tuple(
            InnerRecord(kind=i.kind.value, payload=i.payload, backward=i.backward, copied=i.copied)
            for i in strategy.inner
        ),
        call=strategy.call,
    )


def _strategy_from_record(record: StrategyRecord) -> OpStrategy:
    return OpStrategy(
        inputs=tuple(map(parse_placement, record.inputs)),
        outputs=tuple(map(parse_placement, record.outputs)),
        inner=tuple(
            InnerCollective(CollectiveKind(i.kind), i.payload, i.backward, i.copied)
            for i in record.inner
        ),
        call=record.call,
    )


def _tensor_to_record(tensor: Tensor) -> TensorRecord:
    return TensorRecord(
        name=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        kind=tensor.kind.value,
        requires_grad=tensor.requires_grad,
        base=tensor.base,
    )


def _tensor_from_record(record: TensorRecord) -> Tensor:
    return Tensor(
        name=record.name,
        shape=record.shape,
        dtype=record.dtype,
        kind=TensorKind(record.kind),
        requires_grad=record.requires_grad,
        base=record.base,
    )


def op_to_record(op: Op, strategy: OpStrategy | None) -> OpRecord:
    """Record of an operator, with its strategy where one is chosen."""
    return OpRecord(
        name=op.name,
        target=op.target,
        args=tuple(map(_arg_to_json, op.args)),
        kwargs=tuple((key, _arg_to_json(value)) for key, value in op.kwargs),
        outputs=op.outputs,
        module_path=op.module_path,
        source=op.source,
        flop=op.flop,
        flop_backward=op.flop_backward,
        saved=op.saved,
        saved_extra=op.saved_extra,
        mask=op.mask,
        strategy=None if strategy is None else strategy_to_record(strategy),
    )


def op_from_record(record: OpRecord) -> Op:
    """Operator of a record."""
    return Op(
        name=record.name,
        target=record.target,
        args=tuple(map(_arg_from_json, record.args)),
        kwargs=tuple((key, _arg_from_json(value)) for key, value in record.kwargs),
        outputs=record.outputs,
        module_path=record.module_path,
        source=record.source,
        flop=record.flop,
        flop_backward=record.flop_backward,
        saved=record.saved,
        saved_extra=record.saved_extra,
        mask=record.mask,
    )


def _parameter_to_record(
    parameter: Parameter, placements: Mapping[str, tuple[Placement, bool]]
) -> ParameterRecord:
    placement, partial = placements.get(parameter.fqn, (None, False))
    return ParameterRecord(
        fqn=parameter.fqn,
        shape=parameter.shape,
        dtype=parameter.dtype,
        trainable=parameter.trainable,
        init=InitRecord.model_validate(
            {"kind": parameter.init.kind, "a": parameter.init.a, "b": parameter.init.b}
        ),
        aliases=parameter.aliases,
        placement="R" if placement is None else str(placement),
        partial_grad=partial,
    )


def _arg_to_json(arg: Arg) -> Json:
    match arg:
        case Ref(name):
            return {"ref": name}
        case Const(kind, name):
            return {"const": [kind, name]}
        case Bound(index):
            return {"number": index}
        case tuple():
            return [_arg_to_json(item) for item in arg]
        case float() if not math.isfinite(arg):
            return {"float": str(arg)}
        case _:
            return arg


def _arg_from_json(value: Json) -> Arg:
    if isinstance(value, list):
        return tuple(map(_arg_from_json, value))
    if isinstance(value, dict):
        match value:
            case {"ref": str(name)}:
                return Ref(name)
            case {"const": [str(kind), str(name)]}:
                return Const(kind, name)
            case {"number": int(index)} if not isinstance(index, bool):
                return Bound(index)
            case {"float": str(text)}:
                return float(text)
            case _:
                raise ValueError(f"argument {value!r} is neither ref, const, number nor float")
    return value
