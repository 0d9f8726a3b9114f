"""The plan file: everything needed to verify, show and emit without solving again.

`Plan` is the only file users keep. It is data: reading it runs nothing, and names in it are
checked against fixed patterns before they may reach generated code.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

__all__ = [
    "MAX_EVENTS",
    "BaselineRecord",
    "BlockClassRecord",
    "BufferRecord",
    "CalibrationRecord",
    "CandidateRecord",
    "ClusterRecord",
    "GraphRecord",
    "InitRecord",
    "InnerRecord",
    "InputRecord",
    "InstanceRecord",
    "Json",
    "MemoryRecord",
    "MeshRecord",
    "ModelRecord",
    "OpRecord",
    "ParameterRecord",
    "PinRecord",
    "PipelineRecord",
    "Plan",
    "PredictionRecord",
    "SourceRecord",
    "StageCostRecord",
    "StageRecord",
    "StepRecord",
    "StrategyRecord",
    "TensorRecord",
    "TimeRecord",
    "UnitCostRecord",
    "WorkloadRecord",
]

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Fqn = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=500)
]
Target = Annotated[
    str,
    StringConstraints(
        pattern=r"^(aten\.(__(and|or|xor|lshift|rshift|iand|ior|ixor)__|_?[a-zA-Z][a-zA-Z0-9_]*)"
        r"\.[a-zA-Z][a-zA-Z0-9_]*|[a-zA-Z][a-zA-Z0-9_]*\._?[a-zA-Z][a-zA-Z0-9_]*\.[a-zA-Z]"
        r"[a-zA-Z0-9_]*)$"
    ),
]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=2000)]
Size = Annotated[int, Field(ge=0, le=2**40)]
PlacementText = Annotated[str, StringConstraints(pattern=r"^(R|P|S\(\d+(,([1-9]\d*|pad))?\))$")]
DType = Annotated[
    str,
    StringConstraints(
        pattern=r"^(float(64|32|16)|bfloat16|float8_e4m3fn|int(64|32|16|8)|uint8|bool|complex64)$"
    ),
]
StoredText = Annotated[str, StringConstraints(pattern=r"^(R|S\(\d+(,([1-9]\d*|pad))?\))$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16,64}$")]
Json = JsonValue
Seconds = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(ge=1)]
Pass = tuple[Seconds, Seconds]

MAX_EVENTS = 2**17
"""Passes of blocks over microbatches in a step, above which it is not simulated."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TensorRecord(_Record):
    """A tensor of a block or of the shared operators."""

    name: Identifier
    shape: tuple[Size, ...]
    dtype: DType
    kind: Literal["parameter", "buffer", "input", "shared", "boundary", "activation"]
    requires_grad: bool
    base: Identifier


class InnerRecord(_Record):
    """A collective inside an operator's implementation; payload and local copies in bytes."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
    payload: int
    backward: bool
    copied: int = 0


class StrategyRecord(_Record):
    """Chosen strategy of an operator on the ``tp`` axis."""

    inputs: tuple[PlacementText, ...]
    outputs: tuple[PlacementText, ...]
    inner: tuple[InnerRecord, ...] = ()
    call: Annotated[str, StringConstraints(pattern=r"^([a-z][a-z0-9_]*)?$")] = ""


class OpRecord(_Record):
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


class BlockClassRecord(_Record):
    """A class of blocks with the strategy chosen for each of its operators.

    ``boundary_in`` and ``boundary_out`` are the placements of the tensors at its ends.
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


class InstanceRecord(_Record):
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


class InitRecord(_Record):
    """Initial values: ``normal(mean a, std b)``, ``uniform(a, b)`` or ``constant(a)``."""

    kind: Literal["normal", "uniform", "constant"]
    a: float = 0.0
    b: float = 0.0


class ParameterRecord(_Record):
    """A parameter, its placement on ``tp``, and whether its gradient is partial there."""

    fqn: Fqn
    shape: tuple[Size, ...]
    dtype: DType
    trainable: bool
    init: InitRecord
    aliases: tuple[Fqn, ...] = ()
    placement: StoredText = "R"
    partial_grad: bool = False


class BufferRecord(_Record):
    """A buffer with its value: base64 of zlib of the raw little-endian bytes."""

    fqn: Fqn
    shape: tuple[Size, ...]
    dtype: DType
    persistent: bool
    data: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/=]*$")]


class GraphRecord(_Record):
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


class ModelRecord(_Record):
    """How to build the model again: the form it was named in, and its digest.

    ``form`` is ``builtin``, ``hf`` or ``file``. ``config`` is the architecture's
    configuration for the first two. ``file_digest`` guards a file's contents.
    """

    spec: Text
    form: Literal["builtin", "hf", "file"]
    overrides: dict[str, Json] = {}
    config: dict[str, Json] = {}
    digest: Digest
    file_digest: Text = ""
    num_parameters: int


class WorkloadRecord(_Record):
    """What is trained: sequences a step, tokens a sequence (0: not a sequence model), dtype.

    ``master_weights``: parameters of fewer than 32 bits have a float32 copy, or none.
    ``compile``: torch.compile runs on each block, and the plan is priced so.
    """

    global_batch: int = Field(ge=1)
    seq_len: int = Field(ge=0)
    dtype: DType
    optimizer: Literal["adamw", "adamw-bf16", "adamw-8bit", "sgd", "sgd-momentum"]
    master_weights: Literal["float32", "none"] = "float32"
    compile: bool = False


class SourceRecord(_Record):
    """Origin of a hardware number."""

    field: Text
    provenance: Literal["measured", "catalogue", "default"]
    source: Text


class ClusterRecord(_Record):
    """The cluster a plan is for; ``memory`` is bytes of a device, ``usable_memory`` of them."""

    spec: Text
    accelerator: Text
    nodes: int = Field(ge=1)
    ranks_per_node: int = Field(ge=1)
    memory: int
    usable_memory: int
    digest: Digest
    profile_digest: Digest
    sources: tuple[SourceRecord, ...]


class MeshRecord(_Record):
    """Degrees, outermost axis first."""

    pp: int = Field(ge=1)
    dp_replicate: int = Field(ge=1)
    dp_shard: int = Field(ge=1)
    tp: int = Field(ge=1)


class StageRecord(_Record):
    """Blocks ``first`` to ``last`` (exclusive) of the chain on one pipeline rank."""

    first: int
    last: int


class PipelineRecord(_Record):
    """Schedule and cut; ``schedule`` is ``none`` for a single stage."""

    schedule: Literal["none", "gpipe", "1f1b"]
    microbatches: int = Field(ge=1)
    micro_batch_size: int = Field(ge=1)
    stages: tuple[StageRecord, ...]


class MemoryRecord(_Record):
    """Bytes on a rank of one stage; the parts sum to ``peak``."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    buffers: int
    peak: int


class TimeRecord(_Record):
    """Seconds of one step; the parts sum to the step time."""

    compute: float
    recompute: float
    exposed_tp: float
    exposed_dp: float
    exposed_pp: float
    bubble: float
    optimizer: float


class UnitCostRecord(_Record):
    """A block for one microbatch: seconds of kernels, and of collectives that they wait for.

    ``gather`` and ``reduce`` are seconds of its parameters' all-gather and its gradients' sum;
    ``reduced`` is bytes of gradients that are summed in buckets.
    """

    forward: Pass
    backward: Pass
    gather: Seconds = 0.0
    reduce: Seconds = 0.0
    reduced: Annotated[float, Field(ge=0)] = 0.0


class StageCostRecord(_Record):
    """A stage: its units in order, as runs of (position in ``units``, how many); seconds.

    ``collectives``, ``optimizer`` and ``publish`` are what follows the last gradient.
    """

    units: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1, le=10**6)]], ...]
    send_output: Seconds = 0.0
    send_gradient: Seconds = 0.0
    collectives: Seconds = 0.0
    optimizer: Seconds = 0.0
    publish: Seconds = 0.0


class StepRecord(_Record):
    """What a step is simulated from; words as in `autoplan.simulate`."""

    units: tuple[UnitCostRecord, ...]
    stages: tuple[StageCostRecord, ...]
    gathering: Literal["never", "forward", "step", "turn", "action"]
    reduction: Literal["each", "last", "stage"]
    messages: Literal["beside", "awaited"]
    joined: bool = False
    blocking: bool = False
    compute_slow_down: Factor = 1.0
    network_slow_down: Factor = 1.0

    @model_validator(mode="after")
    def _units_exist(self) -> Self:
        for index, stage in enumerate(self.stages):
            for unit, _ in stage.units:
                if unit >= len(self.units):
                    raise ValueError(f"stage {index} names unit {unit} of {len(self.units)}")
        return self


class CandidateRecord(_Record):
    """A configuration that was priced: its step time, or why it lost."""

    label: Text
    step_time: float | None
    peak_memory: int | None
    reason: Text = ""


class BaselineRecord(_Record):
    """A plan practitioners would write by hand: its step time, or why it does not fit."""

    name: Text
    step_time: float | None
    peak_memory: int | None
    reason: Text = ""


class PinRecord(_Record):
    """A decision fixed by the user."""

    name: Text
    value: Text


class PredictionRecord(_Record):
    """What the cost model says. ``gap`` = (step_time - lower_bound) / step_time."""

    step_time: float
    lower_bound: float
    gap: float
    termination: Literal["optimal", "time_limit", "interrupted"]
    tokens_per_second: float
    samples_per_second: float
    mfu: float
    flop_per_step: int
    peak_memory: int
    memory_limit: int
    time: TimeRecord
    stages: tuple[MemoryRecord, ...]


class CalibrationRecord(_Record):
    """The prediction corrected by runs: measured over predicted, of ``runs`` runs.

    ``basis`` says what was run: this plan itself, or others of its model, axes and hardware.
    ``memory_ratio`` is None where runs say nothing of it. The plan's prediction
    stays the model's own.
    """

    basis: Literal["plan", "model"]
    runs: int = Field(ge=1)
    step_time_ratio: float = Field(gt=0)
    memory_ratio: float | None = Field(default=None, gt=0)
    step_time: float = Field(gt=0)
    peak_memory: int = Field(ge=0)


class CorrectionRecord(_Record):
    """What runs of the model changed of the numbers that its plans were priced with.

    Seconds of kernels and of collectives were multiplied, ``reserved`` bytes taken off the
    memory that plans may use. Without a correction the factors are 1.
    """

    runs: int = Field(ge=1)
    kernels: float = Field(gt=0)
    collectives: float = Field(gt=0)
    reserved: int = Field(ge=0)


class InputRecord(_Record):
    """What a node's loaders give, in samples/s, and the seconds a step's input then takes."""

    rate_per_node: float = Field(gt=0)
    step_time: float = Field(gt=0)
    source: Text


class Plan(_Record):
    """A parallel plan; ``profile`` is the file its hardware numbers or residuals came from.

    ``step`` is what its step was simulated from; None if that was too much to simulate.
    """

    schema_version: Literal[1] = 1
    autoplan_version: Text
    model: ModelRecord
    workload: WorkloadRecord
    cluster: ClusterRecord
    mesh: MeshRecord
    pipeline: PipelineRecord
    zero: Literal[0, 1, 2, 3]
    recompute: Literal["none", "selective", "full"]
    graph: GraphRecord
    prediction: PredictionRecord
    step: StepRecord | None = None
    baselines: tuple[BaselineRecord, ...]
    considered: tuple[CandidateRecord, ...]
    pins: tuple[PinRecord, ...] = ()
    notes: tuple[Text, ...] = ()
    profile: Text = ""
    calibration: CalibrationRecord | None = None
    correction: CorrectionRecord | None = None
    input: InputRecord | None = None

    @model_validator(mode="after")
    def _step_is_short(self) -> Self:
        if self.step is not None:
            units = sum(count for stage in self.step.stages for _, count in stage.units)
            passes = units * self.pipeline.microbatches
            if passes > MAX_EVENTS:
                raise ValueError(
                    f"step: {passes} passes of units, at most {MAX_EVENTS} are simulated"
                )
        return self

    @property
    def expected_step_time(self) -> float:
        """Seconds of a step without waiting for input: as predicted, corrected by runs if any."""
        calibration = self.calibration
        return self.prediction.step_time if calibration is None else calibration.step_time

    @property
    def is_input_bound(self) -> bool:
        """Whether a step's input takes longer than the step."""
        return self.input is not None and self.input.step_time > self.expected_step_time

    def __str__(self) -> str:
        axes = (
            " x ".join(f"{a} {d}" for a, d in self.mesh.model_dump().items() if d > 1) or "1 rank"
        )
        return (
            f"{self.graph.name} on {self.cluster.spec}: {axes}, {self.prediction.step_time:.4g} s"
        )
