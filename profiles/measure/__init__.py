"""Measuring this machine: the only part of `autoplan.profiles` that imports torch."""

from autoplan.profiles.measure.run import measure_cpu, write_profile

__all__ = ["measure_cpu", "write_profile"]
