"""The graph of a plan file: the captured model with the strategies chosen for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from autoplan.ir.fields import (
    DType,
    Fqn,
    Identifier,
    Json,
    PlacementText,
    PlanRecord,
    Size,
    StoredText,
    Target,
    Text,
)
from autoplan.ir.levels import Level

__all__ = [
    "BlockClassRecord",
    "BufferRecord",
    "GraphRecord",
    "InitRecord",
    "InnerRecord",
    "InstanceRecord",
    "OpRecord",
    "ParameterRecord",
    "StrategyRecord",
    "TensorRecord",
]


class TensorRecord(PlanRecord):
    """A tensor of a block or of the shared operators."""

    name: Identifier
    shape: tuple[Size, ...]
    dtype: DType
    kind: Literal["parameter", "buffer", "input", "shared", "boundary", "activation"]
    requires_grad: bool
    base: Identifier


class InnerRecord(PlanRecord):
    """A collective inside an operator's implementation; payload and local copies in bytes."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
    payload: int
    backward: bool
    copied: int = 0


class StrategyRecord(PlanRecord):
    """Chosen strategy of an operator on the ``tp`` axis."""

    inputs: tuple[PlacementText, ...]
    outputs: tuple[PlacementText, ...]
    inner: tuple[InnerRecord, ...] = ()
    call: Annotated[str, StringConstraints(pattern=r"^([a-z][a-z0-9_]*)?$")] = ""


class OpRecord(PlanRecord):
    """An ATen call.

    Tensors in arguments are ``{"ref": name}``, torch constants ``{"const": [kind, name]}``.
    """

    name: Identifier
    target: Target
    args: tuple[Json, ...]
    kwargs: tuple[tuple[Identifier, Json], ...] = ()
    outputs: tuple[Identifier, ...]
    module_path: Text = ""
    source: Text = ""
    flop: int = 0
    flop_backward: int = 0
    saved: tuple[Identifier, ...] = ()
    saved_extra: int = 0
    mask: Annotated[str, StringConstraints(pattern=r"^([a-z]+(\([0-9]+\))?)?$")] = ""
    strategy: StrategyRecord | None = None


class BlockClassRecord(PlanRecord):
    """A class of blocks with the strategy chosen for each of its operators.

    ``boundary_in`` and ``boundary_out`` are the placements of the tensors at its ends,
    ``recompute`` is how much of the forward its blocks run again in backward.
    """

    name: Identifier
    ops: tuple[OpRecord, ...]
    tensors: tuple[TensorRecord, ...]
    inputs: tuple[Identifier, ...]
    outputs: tuple[Identifier, ...]
    parameters: tuple[Identifier, ...]
    buffers: tuple[Identifier, ...]
    shared: tuple[Identifier, ...]
    boundary_in: tuple[PlacementText, ...] = ()
    boundary_out: tuple[PlacementText, ...] = ()
    recompute: Level = "none"


class InstanceRecord(PlanRecord):
    """A block of the chain: its class and the FQNs bound to the class's names.

    ``unused`` are positions of the class's outputs that no later block reads, ``numbers`` what
    ``{"number": index}`` stands for in the operators' arguments.
    """

    name: Text
    block_class: int
    parameters: tuple[Fqn, ...]
    buffers: tuple[Fqn, ...]
    unused: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


class InitRecord(PlanRecord):
    """Initial values: ``normal(mean a, std b)``, ``uniform(a, b)`` or ``constant(a)``."""

    kind: Literal["normal", "uniform", "constant"]
    a: float = 0.0
    b: float = 0.0


class ParameterRecord(PlanRecord):
    """A parameter, its placement on ``tp``, and whether its gradient is partial there."""

    fqn: Fqn
    shape: tuple[Size, ...]
    dtype: DType
    trainable: bool
    init: InitRecord
    aliases: tuple[Fqn, ...] = ()
    placement: StoredText = "R"
    partial_grad: bool = False


class BufferRecord(PlanRecord):
    """A buffer with its value: base64 of zlib of the raw little-endian bytes."""

    fqn: Fqn
    shape: tuple[Size, ...]
    dtype: DType
    persistent: bool
    data: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/=]*$")]


class GraphRecord(PlanRecord):
    """The captured model at the plan's microbatch size, with strategies."""

    name: Text
    dtype: DType
    micro_batch_size: int
    inputs: tuple[TensorRecord, ...]
    shared_ops: tuple[OpRecord, ...]
    shared_tensors: tuple[TensorRecord, ...]
    classes: tuple[BlockClassRecord, ...]
    instances: tuple[InstanceRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    buffers: tuple[BufferRecord, ...]
    notes: tuple[Text, ...] = ()

    @property
    def levels(self) -> tuple[Level, ...]:
        """Recompute level of each block of the chain."""
        by_class = [block.recompute for block in self.classes]
        return tuple(by_class[instance.block_class] for instance in self.instances)
