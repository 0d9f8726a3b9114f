"""Event simulation of a pipeline: a plan's times into a timeline."""

from autoplan.simulate.pipeline import Event, Timeline, simulate_pipeline

__all__ = ["Event", "Timeline", "simulate_pipeline"]
