"""Measuring this machine: the only part of `autoplan.profiles` that imports torch."""

from autoplan.profiles.measure.run import measure_machine, this_machine, write_profile

__all__ = ["measure_machine", "this_machine", "write_profile"]
