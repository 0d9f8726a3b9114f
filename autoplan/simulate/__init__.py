"""Event simulation of a training step: times of stages into a timeline."""

from autoplan.simulate.chrome import chrome_trace
from autoplan.simulate.costs import (
    DataParallel,
    Gathering,
    Messages,
    Reduction,
    StageCost,
    Tail,
    UnitCost,
    Work,
    stage_of_times,
    work_of,
)
from autoplan.simulate.pipeline import simulate_pipeline
from autoplan.simulate.record import StepCosts, step_record, timeline_of_plan
from autoplan.simulate.step import simulate_step
from autoplan.simulate.timeline import COMPUTE, DATA, MODEL, Event, Timeline, send_stream

__all__ = [
    "COMPUTE",
    "DATA",
    "MODEL",
    "DataParallel",
    "Event",
    "Gathering",
    "Messages",
    "Reduction",
    "StageCost",
    "StepCosts",
    "Tail",
    "Timeline",
    "UnitCost",
    "Work",
    "chrome_trace",
    "send_stream",
    "simulate_pipeline",
    "simulate_step",
    "stage_of_times",
    "step_record",
    "timeline_of_plan",
    "work_of",
]
