"""The plan file: everything needed to verify, show and emit without solving again.

`Plan` is the only file users keep. It is data: reading it runs nothing, and names in it are
checked against fixed patterns before they may reach generated code.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.ir.fields import Digest, DType, Factor, Json, Pass, PlanRecord, Seconds, Text
from autoplan.ir.graph_record import GraphRecord
from autoplan.ir.levels import Summary, level_summary, levels_text

__all__ = [
    "MAX_EVENTS",
    "BaselineRecord",
    "CalibrationRecord",
    "CandidateRecord",
    "ClusterRecord",
    "InputRecord",
    "MemoryRecord",
    "MeshRecord",
    "ModelRecord",
    "PinRecord",
    "PipelineRecord",
    "Plan",
    "PredictionRecord",
    "SourceRecord",
    "StageCostRecord",
    "StageRecord",
    "StepRecord",
    "TimeRecord",
    "UnitCostRecord",
    "WorkloadRecord",
]

MAX_EVENTS = 2**17
"""Passes of blocks over microbatches in a step, above which it is not simulated."""


class ModelRecord(PlanRecord):
    """How to build the model again: the form it was named in, and its digest.

    ``form`` is ``builtin``, ``hf`` or ``file``. ``config`` is the architecture's
    configuration for the first two. ``file_digest`` guards a file's contents.
    """

    spec: Text
    form: Literal["builtin", "hf", "file"]
    overrides: dict[str, Json] = Field(default_factory=dict)
    config: dict[str, Json] = Field(default_factory=dict)
    digest: Digest
    file_digest: Text = ""
    num_parameters: int


class WorkloadRecord(PlanRecord):
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


class SourceRecord(PlanRecord):
    """Origin of a hardware number."""

    field: Text
    provenance: Literal["measured", "catalogue", "default"]
    source: Text


class ClusterRecord(PlanRecord):
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


class MeshRecord(PlanRecord):
    """Degrees, outermost axis first."""

    pp: int = Field(ge=1)
    dp_replicate: int = Field(ge=1)
    dp_shard: int = Field(ge=1)
    tp: int = Field(ge=1)


class StageRecord(PlanRecord):
    """Blocks ``first`` to ``last`` (exclusive) of the chain."""

    first: int
    last: int


class PipelineRecord(PlanRecord):
    """Schedule and cut; ``schedule`` is ``none`` for a single stage.

    Pipeline ranks have as many stages each; the schedule says which (`autoplan.schedules`).
    """

    schedule: Literal[
        "none",
        "gpipe",
        "1f1b",
        "interleaved1f1b",
        "loopedbfs",
        "interleavedzerobubble",
        "zbvzerobubble",
        "dualpipev",
    ]
    microbatches: int = Field(ge=1)
    micro_batch_size: int = Field(ge=1)
    stages: tuple[StageRecord, ...]


class MemoryRecord(PlanRecord):
    """Bytes on a rank of one place in the pipeline; the parts sum to ``peak``."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    buffers: int
    peak: int


class TimeRecord(PlanRecord):
    """Seconds of one step; the parts sum to the step time."""

    compute: float
    recompute: float
    exposed_tp: float
    exposed_dp: float
    exposed_pp: float
    bubble: float
    optimizer: float


class UnitCostRecord(PlanRecord):
    """A block for one microbatch: seconds of kernels, and of collectives that they wait for.

    ``gather`` and ``reduce`` are seconds of its parameters' all-gather and its gradients' sum;
    ``reduced`` is bytes of gradients that are summed in buckets.
    """

    forward: Pass
    backward: Pass
    gather: Seconds = 0.0
    reduce: Seconds = 0.0
    reduced: Annotated[float, Field(ge=0)] = 0.0


class StageCostRecord(PlanRecord):
    """A stage: its units in order, as runs of (position in ``units``, how many); seconds.

    ``collectives``, ``optimizer`` and ``publish`` are what follows the last gradient; of a rank
    with several stages its first has them.
    """

    units: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1, le=10**6)]], ...]
    send_output: Seconds = 0.0
    send_gradient: Seconds = 0.0
    collectives: Seconds = 0.0
    optimizer: Seconds = 0.0
    publish: Seconds = 0.0


class StepRecord(PlanRecord):
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


class CandidateRecord(PlanRecord):
    """A configuration that was priced: its step time, or why it lost."""

    label: Text
    step_time: float | None
    peak_memory: int | None
    reason: Text = ""


class BaselineRecord(PlanRecord):
    """A plan practitioners would write by hand: its step time, or why it does not fit."""

    name: Text
    step_time: float | None
    peak_memory: int | None
    reason: Text = ""


class PinRecord(PlanRecord):
    """A decision fixed by the user: its name, or a pattern of parameters with their placement.

    ``free_step_time`` is seconds of ``free_plan``, the fastest found with that one left to the
    planner; None where there was no time to search. ``proved``: that search came to its end.
    """

    name: Text
    value: Text
    free_step_time: float | None = Field(default=None, gt=0)
    free_plan: Text = ""
    proved: bool = False


class PredictionRecord(PlanRecord):
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


class CalibrationRecord(PlanRecord):
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


class CorrectionRecord(PlanRecord):
    """What runs of the model changed of the numbers that its plans were priced with.

    Seconds of kernels and of collectives were multiplied, ``reserved`` bytes taken off the
    memory that plans may use. Without a correction the factors are 1.
    """

    runs: int = Field(ge=1)
    kernels: float = Field(gt=0)
    collectives: float = Field(gt=0)
    reserved: int = Field(ge=0)


class InputRecord(PlanRecord):
    """What a node's loaders give, in samples/s, and the seconds a step's input then takes."""

    rate_per_node: float = Field(gt=0)
    step_time: float = Field(gt=0)
    source: Text


class Plan(PlanRecord):
    """A parallel plan; ``profile`` is the file its hardware numbers or residuals came from.

    ``recompute`` sums up the levels of its blocks, which the graph's classes have. ``step`` is
    what its step was simulated from; None if that was too much to simulate.
    """

    schema_version: Literal[2] = 2
    autoplan_version: Text
    model: ModelRecord
    workload: WorkloadRecord
    cluster: ClusterRecord
    mesh: MeshRecord
    pipeline: PipelineRecord
    zero: Literal[0, 1, 2, 3]
    recompute: Summary
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
    def _recompute_is_that_of_the_blocks(self) -> Self:
        counts = len(self.graph.classes)
        if any(not 0 <= i.block_class < counts for i in self.graph.instances):
            return self  # the graph is broken, as a check of it says better
        found = level_summary(self.graph.levels)
        if self.recompute != found:
            raise ValueError(f"recompute: {self.recompute}, that of the blocks is {found}")
        return self

    @model_validator(mode="after")
    def _ranks_have_as_many_stages(self) -> Self:
        stages = len(self.pipeline.stages)
        if not stages or stages % self.mesh.pp:
            raise ValueError(f"pipeline: {stages} stages for pp {self.mesh.pp}")
        if self.step is not None and len(self.step.stages) != stages:
            raise ValueError(f"step: costs of {len(self.step.stages)} stages, there are {stages}")
        return self

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
    def virtual_stages(self) -> int:
        """Stages on each pipeline rank."""
        return len(self.pipeline.stages) // self.mesh.pp

    @property
    def recompute_text(self) -> str:
        """How many blocks have which recompute level."""
        return levels_text(self.graph.levels) if self.recompute == "mixed" else self.recompute

    @property
    def expected_step_time(self) -> float:
        """Seconds of a step without waiting for input: as predicted, corrected by runs if any."""
        calibration = self.calibration
        return self.prediction.step_time if calibration is None else calibration.step_time

    @property
    def effective_step_time(self) -> float:
        """Seconds from step to step: of the step, or of its input where that takes longer."""
        step_time = self.expected_step_time
        return step_time if self.input is None else max(step_time, self.input.step_time)

    @property
    def expected_peak_memory(self) -> int:
        """Bytes on the fullest rank: as predicted, corrected by runs if any."""
        return (
            self.prediction.peak_memory
            if self.calibration is None
            else (self.calibration.peak_memory)
        )

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
